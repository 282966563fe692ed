/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Translates packets of known flows to the other family in XDP, which replaces the IP header by one of another size. */
#ifndef MYELIN_XDP_CROSS_H
#define MYELIN_XDP_CROSS_H

#include "xdp_write.h"

/*
 * Writes ports and checksum, including the change of the pseudo header, before the headers are moved. Called with a
 * constant ipv4, as xdp_write_ip is.
 */
INLINE bool xdp_cross_l4(struct xdp_md *ctx, const struct packet *pkt, const struct rewrite *to, bool ipv4)
{
	__be16 *l4 = (void *)(long)ctx->data + L3 + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u16 *check = l4 + (pkt->proto == IPPROTO_TCP ? 8 : 3);
	void *end = (void *)(long)ctx->data_end;

	if ((void *)(l4 + 4) > end || (void *)(check + 1) > end)
		return false;
	if (pkt->proto == IPPROTO_UDP && !*check)
		return false; /* IPv6 requires a checksum: from_wire computes it */
	xdp_write_l4(l4, check, pkt, to, (__u32)cross_diff(pkt, to));
	return true;
}

INLINE bool xdp_cross6(struct xdp_md *ctx, const struct cpu *c)
{
	struct iphdr *ip = (void *)(long)ctx->data + L3, was;
	struct ipv6hdr *ip6;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return false;
	was = *ip;
	if (bpf_xdp_adjust_head(ctx, -(int)CROSS_GROWS))
		return false;
	ip6 = (void *)(long)ctx->data + L3;
	if ((void *)(ip6 + 1) > (void *)(long)ctx->data_end)
		return false;
	cross_head6(ip6, &was, &c->pkt, &c->to);
	return xdp_write_eth(ctx, &c->path, bpf_htons(ETH_P_IPV6));
}

INLINE bool xdp_cross4(struct xdp_md *ctx, const struct cpu *c)
{
	struct ipv6hdr *ip6 = (void *)(long)ctx->data + L3, was;
	struct iphdr *to, ip;

	if ((void *)(ip6 + 1) > (void *)(long)ctx->data_end)
		return false;
	was = *ip6;
	if (bpf_xdp_adjust_head(ctx, CROSS_GROWS))
		return false;
	to = (void *)(long)ctx->data + L3;
	if ((void *)(to + 1) > (void *)(long)ctx->data_end)
		return false;
	cross_head4(&ip, &was, &c->pkt, &c->to);
	*to = ip;
	return xdp_write_eth(ctx, &c->path, bpf_htons(ETH_P_IP));
}

/*
 * Translates the packet to the other family, with the addresses and ports in c->to and the Ethernet header of c->path.
 * Cost: per packet of such a flow.
 */
APART enum xdp_written xdp_cross(struct xdp_md *ctx)
{
	struct cpu *c = cpu_this();
	bool done;

	if (!c || !(c->pkt.family == 4 ? xdp_cross_l4(ctx, &c->pkt, &c->to, true) :
					 xdp_cross_l4(ctx, &c->pkt, &c->to, false)))
		return XDP_UNCHANGED;
	c->pkt.ttl--;
	done = c->pkt.family == 4 ? xdp_cross6(ctx, c) : xdp_cross4(ctx, c);
	return done ? XDP_WRITTEN : XDP_BROKEN;
}

#endif
