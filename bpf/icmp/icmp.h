/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors sent by the datapath (RFC 792, RFC 4443), so that path MTU discovery and traceroute work without the
 * host's stack. An error leaves by the link on which the packet arrived, from the gateway's address, or from the
 * address that the packet was sent to if that is the node's own or a Service's. Slow path.
 */
#ifndef MYELIN_ICMP_H
#define MYELIN_ICMP_H

#include "../checksum.h"
#include "../l4.h"
#include "../../drop/drop.h"
#include "../../route/tunnel/tunnel.h"

/* Bytes of the packet that are quoted, a multiple of 4. RFC 792 requires the IP header and 8 bytes. */
#define ICMP_QUOTE 96

/*
 * Whether an error may be sent for the packet: not for errors, later fragments, and packets without a source address
 * (RFC 1812 4.3.2.7, RFC 4443 2.4 e).
 */
INLINE bool icmp_may_answer(struct __sk_buff *skb, struct cpu *c)
{
	bool sourceless = addr_is4(&c->pkt.src) ? !c->pkt.src.w[3] : addr_is_zero(&c->pkt.src);

	return !sourceless && !l4_parse(skb, &c->pkt) && c->pkt.fragment != FRAGMENT_LATER &&
	       !l4_is_icmp_error(&c->pkt);
}

/* Fills in type and code of an ICMP error for a drop reason. mtu: see icmp_refuse. */
INLINE void icmp_type4(struct icmp_head *h, enum outcome why, __u32 mtu)
{
	h->type = ICMP_DEST_UNREACH;
	switch (why) {
	case DROP_TTL:
		h->type = ICMP_TIME_EXCEEDED;
		break;
	case DROP_TOO_BIG:
		h->code = ICMP_FRAG_NEEDED;
		h->half[1] = bpf_htons(mtu);
		break;
	case DROP_BLACKHOLE:
		h->code = ICMP_PKT_FILTERED;
		break;
	case DROP_NO_SERVICE:
	case DROP_NO_BACKEND:
		h->code = ICMP_PORT_UNREACH;
		break;
	default:
		h->code = ICMP_HOST_UNREACH;
	}
}

/* Fills in type and code of an ICMPv6 error for a drop reason. mtu: see icmp_refuse. */
INLINE void icmp_type6(struct icmp_head *h, enum outcome why, __u32 mtu)
{
	h->type = ICMPV6_DEST_UNREACH;
	switch (why) {
	case DROP_TTL:
		h->type = ICMPV6_TIME_EXCEED;
		break;
	case DROP_TOO_BIG:
		h->type = ICMPV6_PKT_TOOBIG;
		h->word = bpf_htonl(mtu);
		break;
	case DROP_BLACKHOLE:
		h->code = ICMPV6_ADM_PROHIBITED;
		break;
	case DROP_NO_SERVICE:
	case DROP_NO_BACKEND:
		h->code = ICMPV6_PORT_UNREACH;
		break;
	default:
		h->code = ICMPV6_ADDR_UNREACH;
	}
}

/* Sums up the quote, which is length bytes at offset off. */
INLINE __u64 icmp_sum_quote(struct __sk_buff *skb, __u32 off, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 sum = 0;
	__u32 i;

#pragma unroll
	for (i = 0; i < ICMP_QUOTE; i += 4) {
		if (i + 4 > length || data + off + i + 4 > end)
			break;
		sum += *(__u32 *)(data + off + i);
	}
	return sum;
}

/* Writes the IPv4 and ICMP headers before a quote of that many bytes. Returns false if the kernel refuses. */
INLINE bool icmp_write4(struct __sk_buff *skb, const struct packet *pkt, struct icmp_head *icmp, __u32 quote)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(ip) + sizeof(*icmp) + quote),
		.frag_off = bpf_htons(0x4000),
		.ttl = 64,
		.protocol = IPPROTO_ICMP,
		.saddr = pkt->for_host ? pkt->dst.w[3] : config.gateway4.w[3],
		.daddr = pkt->src.w[3],
	};
	__u64 sum = icmp_sum_quote(skb, L3 + sizeof(ip) + sizeof(*icmp), quote);

	ip.check = csum_fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
	icmp->checksum = csum_fold(sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)icmp, sizeof(*icmp), 0));
	return !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(ip), icmp, sizeof(*icmp), 0);
}

/* Writes the IPv6 and ICMPv6 headers before a quote of that many bytes. Returns false if the kernel refuses. */
INLINE bool icmp_write6(struct __sk_buff *skb, const struct packet *pkt, struct icmp_head *icmp, __u32 quote)
{
	struct ipv6hdr ip = {
		.version = 6,
		.payload_len = bpf_htons(sizeof(*icmp) + quote),
		.nexthdr = IPPROTO_ICMPV6,
		.hop_limit = 64,
	};
	__u64 sum = icmp_sum_quote(skb, L3 + sizeof(ip) + sizeof(*icmp), quote);
	struct addr from = pkt->dst;

	if (!pkt->for_host)
		gateway_addr(&from, true);
	__builtin_memcpy(&ip.saddr, &from, 16);
	__builtin_memcpy(&ip.daddr, &pkt->src, 16);
	sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)&ip.saddr, 32, 0);
	sum += bpf_htonl(sizeof(*icmp) + quote);
	sum += bpf_htonl(IPPROTO_ICMPV6);
	icmp->checksum = csum_fold(sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)icmp, sizeof(*icmp), 0));
	return !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(ip), icmp, sizeof(*icmp), 0);
}

/* Swaps the MAC addresses. Returns false if the kernel refuses. */
INLINE bool mac_swap(struct __sk_buff *skb)
{
	struct ethhdr eth;
	struct mac m;

	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return false;
	m = *(struct mac *)eth.h_dest;
	*(struct mac *)eth.h_dest = *(struct mac *)eth.h_source;
	*(struct mac *)eth.h_source = m;
	return !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

/* Turns the packet into an ICMP error about it. Returns false if the kernel refuses. */
INLINE bool icmp_turn(struct __sk_buff *skb, const struct packet *pkt, enum outcome why, __u32 mtu)
{
	__u32 quote = (pkt->end - L3) & ~3u;
	struct icmp_head icmp = {};
	__u32 head = sizeof(icmp) + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	if (quote > ICMP_QUOTE)
		quote = ICMP_QUOTE;
	if (bpf_skb_change_tail(skb, ETH_HLEN + quote, 0))
		return false;
	if (bpf_skb_adjust_room(skb, head, BPF_ADJ_ROOM_MAC, 0))
		return false;
	if (bpf_skb_pull_data(skb, ETH_HLEN + head + quote))
		return false;
	if (pkt->family == 4) {
		icmp_type4(&icmp, why, mtu);
		return icmp_write4(skb, pkt, &icmp, quote) && mac_swap(skb);
	}
	icmp_type6(&icmp, why, mtu);
	return icmp_write6(skb, pkt, &icmp, quote) && mac_swap(skb);
}

/*
 * Drops the packet for the reason why, and sends an ICMP error to its source. mtu: for DROP_TOO_BIG, in bytes of layer
 * 3. Returns a verdict.
 */
APART int icmp_refuse(struct __sk_buff *skb, __u32 why, __u32 mtu)
{
	struct cpu *c = cpu_this();
	bool allowed;
	int verdict;

	if (!c)
		return TC_ACT_SHOT;
	allowed = icmp_may_answer(skb, c);
	verdict = drop(skb, c, why);
	if (!allowed || !icmp_turn(skb, &c->pkt, why, mtu))
		return verdict;
	if (tunnel_device(skb) && !tunnel_key_turn(skb))
		return verdict;
	count(skb, c, REPLY_ICMP);
	return bpf_redirect(skb->ifindex, 0);
}

#endif
