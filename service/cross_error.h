/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about flows that cross families (RFC 7915 4.2, 5.2). They are written anew and quote eight bytes of layer
 * 4. Slow path.
 */
#ifndef MYELIN_CROSS_ERROR_H
#define MYELIN_CROSS_ERROR_H

#include "cross.h"

#define CROSS_QUOTE 8 /* bytes of layer 4: the ports, and TCP's sequence number */

enum {
	ICMP_ADM_PROHIBITED = 10,
	ICMP_PROT_UNREACH = 2,
};

struct cross_error4 {
	struct iphdr ip;
	struct icmp_head icmp;
	struct iphdr about;
	__u8 quote[CROSS_QUOTE];
};

struct cross_error6 {
	struct ipv6hdr ip;
	struct icmp_head icmp;
	struct ipv6hdr about;
	__u8 quote[CROSS_QUOTE];
};

/* Translates type, code and MTU from ICMPv6 to ICMP. Returns false if there is no equivalent. */
INLINE bool cross_type4(const struct icmp_head *h6, struct icmp_head *h4)
{
	__u32 mtu = bpf_ntohl(h6->word);

	switch (h6->type) {
	case ICMPV6_DEST_UNREACH:
		h4->type = ICMP_DEST_UNREACH;
		h4->code = ICMP_HOST_UNREACH;
		if (h6->code == ICMPV6_ADM_PROHIBITED)
			h4->code = ICMP_ADM_PROHIBITED;
		else if (h6->code == ICMPV6_PORT_UNREACH)
			h4->code = ICMP_PORT_UNREACH;
		return true;
	case ICMPV6_PKT_TOOBIG:
		h4->type = ICMP_DEST_UNREACH;
		h4->code = ICMP_FRAG_NEEDED;
		h4->half[1] = bpf_htons(mtu > 0xffff ? 0xffff : mtu - CROSS_GROWS);
		return mtu >= IPV6_MIN_MTU;
	case ICMPV6_TIME_EXCEED:
		h4->type = ICMP_TIME_EXCEEDED;
		h4->code = h6->code;
		return true;
	default:
		return false;
	}
}

/* Translates type, code and MTU from ICMP to ICMPv6. Returns false if there is no equivalent. */
INLINE bool cross_type6(const struct icmp_head *h4, struct icmp_head *h6)
{
	__u32 mtu = bpf_ntohs(h4->half[1]) + CROSS_GROWS;

	if (h4->type == ICMP_TIME_EXCEEDED) {
		h6->type = ICMPV6_TIME_EXCEED;
		h6->code = h4->code;
		return true;
	}
	if (h4->type != ICMP_DEST_UNREACH || h4->code == ICMP_PROT_UNREACH)
		return false;
	h6->type = ICMPV6_DEST_UNREACH;
	switch (h4->code) {
	case ICMP_FRAG_NEEDED:
		h6->type = ICMPV6_PKT_TOOBIG;
		h6->word = bpf_htonl(mtu < IPV6_MIN_MTU ? IPV6_MIN_MTU : mtu);
		break;
	case ICMP_PORT_UNREACH:
		h6->code = ICMPV6_PORT_UNREACH;
		break;
	case ICMP_ADM_PROHIBITED:
	case ICMP_PKT_FILTERED:
		h6->code = ICMPV6_ADM_PROHIBITED;
		break;
	}
	return true;
}

/*
 * Copies the first bytes of layer 4, with the ports that the error's receiver knows. Clears the checksum of a datagram,
 * which would be wrong.
 */
INLINE bool cross_quote(struct __sk_buff *skb, const struct cpu *c, __u8 *quote)
{
	__be16 *ports = (__be16 *)quote;

	if (!packet_load(skb, &c->pkt, c->inner.l4, quote, CROSS_QUOTE))
		return false;
	ports[0] = c->about.sport;
	ports[1] = c->about.dport;
	if (c->inner.proto == IPPROTO_UDP)
		ports[3] = 0;
	return true;
}

INLINE bool cross_store(struct __sk_buff *skb, __be16 type, const void *packet, __u32 size)
{
	return !bpf_skb_change_proto(skb, type, 0) && !bpf_skb_change_tail(skb, L3 + size, 0) &&
	       !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0) &&
	       !bpf_skb_store_bytes(skb, L3, packet, size, 0);
}

INLINE bool cross_error4(struct __sk_buff *skb, struct cpu *c, const struct icmp_head *was)
{
	struct cross_error4 *e = (void *)c->scratch;
	struct ipv6hdr about;

	__builtin_memset(e, 0, sizeof(*e));
	if (!cross_type4(was, &e->icmp) || !cross_quote(skb, c, e->quote) ||
	    bpf_skb_load_bytes(skb, c->inner.l3, &about, sizeof(about)))
		return false;
	header4(&e->ip, &c->to.src, &c->to.dst, sizeof(*e), IPPROTO_ICMP, c->pkt.ttl, 0);
	header4(&e->about, &c->about.src, &c->about.dst, bpf_ntohs(about.payload_len) + sizeof(e->about),
		c->inner.proto, about.hop_limit, 0);
	e->icmp.checksum = csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&e->icmp, sizeof(*e) - sizeof(e->ip), 0));
	return cross_store(skb, bpf_htons(ETH_P_IP), e, sizeof(*e));
}

INLINE bool cross_error6(struct __sk_buff *skb, struct cpu *c, const struct icmp_head *was)
{
	struct cross_error6 *e = (void *)c->scratch;
	struct iphdr about;
	__u64 sum;

	__builtin_memset(e, 0, sizeof(*e));
	if (!cross_type6(was, &e->icmp) || !cross_quote(skb, c, e->quote) ||
	    bpf_skb_load_bytes(skb, c->inner.l3, &about, sizeof(about)))
		return false;
	header6(&e->ip, &c->to.src, &c->to.dst, sizeof(*e) - sizeof(e->ip), IPPROTO_ICMPV6, c->pkt.ttl);
	header6(&e->about, &c->about.src, &c->about.dst, bpf_ntohs(about.tot_len) - about.ihl * 4,
		c->inner.proto, about.ttl);
	sum = bpf_htonl(sizeof(*e) - sizeof(e->ip)) + bpf_htonl(IPPROTO_ICMPV6);
	sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&e->ip.saddr, 2 * sizeof(struct addr), 0);
	e->icmp.checksum =
		csum_fold(sum + (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&e->icmp, sizeof(*e) - sizeof(e->ip), 0));
	return cross_store(skb, bpf_htons(ETH_P_IPV6), e, sizeof(*e));
}

/*
 * Replaces the packet, an ICMP error, by one of the other family with the addresses in c->to, about the packet in
 * c->about. Routers of one family have no address in the other, so that the error comes from the Service's address.
 * Returns NEXT_FORWARD or a drop reason.
 */
APART enum next cross_error(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct icmp_head was;

	if (!c || bpf_skb_load_bytes(skb, c->pkt.l4, &was, sizeof(was)))
		return DROP_CROSS_FAMILY;
	if (!(c->pkt.family == 6 ? cross_error4(skb, c, &was) : cross_error6(skb, c, &was)))
		return DROP_CROSS_FAMILY;
	c->pkt.family = c->pkt.family == 6 ? 4 : 6;
	c->pkt.src = c->to.src;
	c->pkt.dst = c->to.dst;
	return NEXT_FORWARD;
}

#endif
