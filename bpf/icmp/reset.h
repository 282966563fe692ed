/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP resets sent by the datapath, so that a client learns at once that its backend was removed (RFC 9293 3.10.7.1).
 * Slow path.
 */
#ifndef MYELIN_RESET_H
#define MYELIN_RESET_H

#include "icmp.h"

struct tcp_head {
	__be16 sport;
	__be16 dport;
	__be32 seq;
	__be32 ack;
	__u8 offset; /* upper 4 bits: length of the header in words */
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
};

/* Fills in the header r of a reset for the segment with header h and length bytes of payload. */
INLINE void reset_head(const struct tcp_head *h, struct tcp_head *r, __u32 length)
{
	r->sport = h->dport;
	r->dport = h->sport;
	r->offset = sizeof(*r) / 4 << 4;
	if (h->flags & TCP_ACK) {
		r->seq = h->ack;
		r->flags = TCP_RST;
		return;
	}
	r->ack = bpf_htonl(bpf_ntohl(h->seq) + length + !!(h->flags & TCP_SYN) + !!(h->flags & TCP_FIN));
	r->flags = TCP_RST | TCP_ACK;
}

/* Writes the IPv4 and TCP headers. Returns false if the kernel refuses. */
INLINE bool reset_write4(struct __sk_buff *skb, const struct packet *pkt, struct tcp_head *r)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(ip) + sizeof(*r)),
		.frag_off = bpf_htons(0x4000),
		.ttl = 64,
		.protocol = IPPROTO_TCP,
		.saddr = pkt->dst.w[3],
		.daddr = pkt->src.w[3],
	};
	__u64 sum = bpf_htonl(IPPROTO_TCP) + bpf_htonl(sizeof(*r));

	ip.check = csum_fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
	sum += (__u32)bpf_csum_diff(0, 0, &ip.saddr, 8, 0);
	r->checksum = csum_fold(sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)r, sizeof(*r), 0));
	return !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(ip), r, sizeof(*r), 0);
}

/* Writes the IPv6 and TCP headers. Returns false if the kernel refuses. */
INLINE bool reset_write6(struct __sk_buff *skb, const struct packet *pkt, struct tcp_head *r)
{
	struct ipv6hdr ip = {
		.version = 6,
		.payload_len = bpf_htons(sizeof(*r)),
		.nexthdr = IPPROTO_TCP,
		.hop_limit = 64,
	};
	__u64 sum = bpf_htonl(IPPROTO_TCP) + bpf_htonl(sizeof(*r));

	__builtin_memcpy(&ip.saddr, &pkt->dst, 16);
	__builtin_memcpy(&ip.daddr, &pkt->src, 16);
	sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)&ip.saddr, 32, 0);
	r->checksum = csum_fold(sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)r, sizeof(*r), 0));
	return !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(ip), r, sizeof(*r), 0);
}

/* Turns the segment into a reset to its sender. Returns false if it is truncated, or if the kernel refuses. */
INLINE bool reset_turn(struct __sk_buff *skb, const struct packet *pkt)
{
	__u32 size = L3 + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + sizeof(struct tcp_head);
	struct tcp_head h, r = {};

	if (!packet_load(skb, pkt, pkt->l4, &h, sizeof(h)))
		return false;
	reset_head(&h, &r, pkt->end - pkt->l4 - (h.offset >> 4) * 4);
	if (bpf_skb_change_tail(skb, size, 0))
		return false;
	return (pkt->family == 4 ? reset_write4(skb, pkt, &r) : reset_write6(skb, pkt, &r)) && mac_swap(skb);
}

/*
 * Drops the segment in c->pkt for the reason why, and sends a reset, unless it is a reset or a fragment. Returns a
 * verdict.
 */
APART int tcp_reset(struct __sk_buff *skb, __u32 why)
{
	struct cpu *c = cpu_this();
	int verdict;

	if (!c)
		return TC_ACT_SHOT;
	verdict = drop(skb, c, why);
	if (c->pkt.tcp_flags & TCP_RST || c->pkt.fragment != FRAGMENT_NONE || !reset_turn(skb, &c->pkt))
		return verdict;
	if (tunnel_device(skb) && !tunnel_key_turn(skb))
		return verdict;
	count(skb, c, REPLY_RESET);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * Drops the packet for the reason outcome. A TCP connection that a policy allowed before is reset, as policy_cut says;
 * its other end is reset when it sends its next segment. Returns a verdict.
 */
INLINE int refuse_flow(struct __sk_buff *skb, struct cpu *c, int outcome)
{
	bool denied = outcome == DROP_POLICY_DENIED || outcome == DROP_POLICY_NO_RULE;

	if (config.policy && denied && c->policy.cut && config.policy_cut == CUT_RESET && c->pkt.proto == IPPROTO_TCP)
		return tcp_reset(skb, outcome);
	return drop(skb, c, outcome);
}

#endif
