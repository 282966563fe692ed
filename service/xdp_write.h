/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewrites packets of Services in XDP. Checksums are updated by hand: the helpers for that need an skb. */
#ifndef MYELIN_XDP_WRITE_H
#define MYELIN_XDP_WRITE_H

#include "cross.h"

/* Result of rewriting a frame. */
enum xdp_written {
	XDP_UNCHANGED, /* the frame is passed to the stack as it arrived */
	XDP_WRITTEN,
	XDP_BROKEN, /* the frame was changed in part and must be dropped */
};

/*
 * Returns the change of a checksum if `is` replaces `was`. A few additions, where a call of bpf_csum_diff would cost
 * several times as much.
 */
INLINE __u64 csum_change(__u32 was, __u32 is)
{
	return (__u64)(__u32)~was + is;
}

/*
 * Writes addresses and checksum of the IPv4 header, and takes `hops` off the TTL: a constant, 0 or 1. Returns the
 * change of the pseudo header's checksum.
 */
INLINE __u64 xdp_write4(struct iphdr *ip, const struct rewrite *to, __u8 hops)
{
	__u64 diff = csum_change(ip->saddr, to->src.w[3]) + csum_change(ip->daddr, to->dst.w[3]);

	ip->saddr = to->src.w[3];
	ip->daddr = to->dst.w[3];
	ip->ttl -= hops;
	ip->check = csum_update(ip->check, diff + (hops ? bpf_htons(0xfeff) : 0));
	return diff;
}

INLINE __u64 xdp_write6(struct ipv6hdr *ip, const struct rewrite *to, __u8 hops)
{
	const __u32 *src = ip->saddr.s6_addr32, *dst = ip->daddr.s6_addr32;
	__u64 diff = 0;
	int i;

	for (i = 0; i < 4; i++)
		diff += csum_change(src[i], to->src.w[i]) + csum_change(dst[i], to->dst.w[i]);
	__builtin_memcpy(&ip->saddr, &to->src, sizeof(to->src));
	__builtin_memcpy(&ip->daddr, &to->dst, sizeof(to->dst));
	ip->hop_limit -= hops;
	return diff;
}

INLINE void xdp_write_l4(__be16 *l4, __u16 *check, const struct packet *pkt, const struct rewrite *to, __u64 diff)
{
	diff += (__u64)(__u16)~pkt->sport + (__u16)~pkt->dport + to->sport + to->dport;
	l4[0] = to->sport;
	l4[1] = to->dport;
	if (pkt->proto == IPPROTO_UDP && !*check)
		return;
	*check = csum_update(*check, diff);
	if (pkt->proto == IPPROTO_UDP && !*check)
		*check = 0xffff;
}

/*
 * Writes IP and layer 4 headers. Each caller passes a constant ipv4, so that the families are separate code: old
 * verifiers don't see that two tests of the family agree.
 */
INLINE bool xdp_write_ip(void *data, void *end, const struct packet *pkt, const struct rewrite *to, bool ipv4)
{
	__be16 *l4 = data + L3 + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u16 *check = l4 + (pkt->proto == IPPROTO_TCP ? 8 : 3);
	__u64 diff;

	if ((void *)(l4 + 4) > end || (void *)(check + 1) > end)
		return false;
	diff = ipv4 ? xdp_write4(data + L3, to, 1) : xdp_write6(data + L3, to, 1);
	xdp_write_l4(l4, check, pkt, to, diff);
	return true;
}

INLINE void xdp_write_macs(__u32 *eth, const struct path *p)
{
	const __u32 *macs = (const __u32 *)&p->dmac;

	eth[0] = macs[0];
	eth[1] = macs[1];
	eth[2] = macs[2];
}

/* Writes the Ethernet header after the start of the frame has moved. */
INLINE bool xdp_write_eth(struct xdp_md *ctx, const struct path *p, __be16 type)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	xdp_write_macs((__u32 *)eth, p);
	eth->h_proto = type;
	return true;
}

/* Rewrites the packet with the addresses and ports in c->to and the path's Ethernet header. Cost: per packet. */
INLINE enum xdp_written xdp_write(struct xdp_md *ctx, struct cpu *c, const struct path *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!(c->pkt.family == 4 ? xdp_write_ip(data, end, &c->pkt, &c->to, true) :
				   xdp_write_ip(data, end, &c->pkt, &c->to, false)))
		return XDP_UNCHANGED;
	xdp_write_macs(data, p);
	return XDP_WRITTEN;
}

#endif
