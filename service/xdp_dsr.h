/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR in XDP: what service_send does for tc. The packet gets the option that names the frontend, or an outer header, or
 * both; the headers behind them are moved by bpf_xdp_adjust_head.
 */
#ifndef MYELIN_XDP_DSR_H
#define MYELIN_XDP_DSR_H

#include "send.h"
#include "xdp_write.h"

/* Writes the outer headers at data + L3, before an inner packet with `inner` bytes and the given TOS. */
INLINE void xdp_encap(void *data, const struct cpu *c, __u16 inner, __u8 tos, bool ipv4)
{
	__u32 hash = service_hash(&c->pkt);
	struct addr src;

	encap_source(c, hash, &src);
	data += L3;
	if (ipv4)
		encap_header4(data, &src, &c->to.via, inner, tos, ENCAP_TTL - 1);
	else
		encap_header6(data, &src, &c->to.via, inner, ENCAP_TTL - 1);
	if (config.lb_dispatch == DISPATCH_GENEVE)
		encap_header_geneve(data + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)), ipv4, hash, inner);
}

/*
 * Rewrites the IPv4 packet, before which the frame has been lengthened by the sizes of the option and the outer
 * headers. Each caller passes constants, so that offsets are constants.
 */
INLINE bool xdp_dsr4(struct xdp_md *ctx, const struct cpu *c, bool option, bool encap)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + L3 + (encap ? sizeof(*ip) + encap_more() : 0);
	struct dsr_option4 *o = (void *)(ip + 1);
	__be16 *l4 = (void *)o + (option ? sizeof(*o) : 0);
	__u16 *check = l4 + (c->pkt.proto == IPPROTO_TCP ? 8 : 3);
	struct iphdr was; /* the header before and after the move overlap */
	__u64 diff;

	if ((void *)(l4 + 4) > end || (void *)(check + 1) > end)
		return false;
	if (option) {
		was = *(struct iphdr *)((void *)ip + sizeof(*o));
		*ip = was;
		dsr_option4_fill(o, &c->pkt);
		dsr_lengthen4(ip, sizeof(*o), csum_words((const __u32 *)o, sizeof(*o) / 4));
	}
	diff = xdp_write4(ip, &c->to, encap ? 0 : 1);
	xdp_write_l4(l4, check, &c->pkt, &c->to, diff);
	if (encap)
		xdp_encap(data, c, bpf_ntohs(ip->tot_len), ip->tos, true);
	return true;
}

/* The same for IPv6. */
INLINE bool xdp_dsr6(struct xdp_md *ctx, const struct cpu *c, bool option, bool encap)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + L3 + (encap ? sizeof(*ip) + encap_more() : 0);
	struct dsr_option6 *o = (void *)(ip + 1);
	__be16 *l4 = (void *)o + (option ? sizeof(*o) : 0);
	__u16 *check = l4 + (c->pkt.proto == IPPROTO_TCP ? 8 : 3);
	struct ipv6hdr was;
	__u64 diff;

	if ((void *)(l4 + 4) > end || (void *)(check + 1) > end)
		return false;
	if (option) {
		was = *(struct ipv6hdr *)((void *)ip + sizeof(*o));
		*ip = was;
		dsr_option6_fill(o, &c->pkt, ip->nexthdr);
		ip->nexthdr = IPPROTO_DSTOPTS;
		ip->payload_len = bpf_htons(bpf_ntohs(ip->payload_len) + sizeof(*o));
	}
	diff = xdp_write6(ip, &c->to, encap ? 0 : 1);
	xdp_write_l4(l4, check, &c->pkt, &c->to, diff);
	if (encap)
		xdp_encap(data, c, bpf_ntohs(ip->payload_len) + sizeof(*ip), 0, false);
	return true;
}

INLINE bool xdp_dsr_write(struct xdp_md *ctx, const struct cpu *c, bool option, bool encap)
{
	return c->pkt.family == 4 ? xdp_dsr4(ctx, c, option, encap) : xdp_dsr6(ctx, c, option, encap);
}

/*
 * Rewrites the packet with the addresses and ports in c->to, the option and the outer header that c->to asks for, and
 * the Ethernet header of c->path. Cost: per packet of such a flow.
 */
APART enum xdp_written xdp_dsr(struct xdp_md *ctx)
{
	struct cpu *c = cpu_this();
	bool done;

	if (!c || bpf_xdp_adjust_head(ctx, -(int)rewrite_grows(c)))
		return XDP_UNCHANGED;
	if (!config.lb_dispatch || !c->to.encap)
		done = xdp_dsr_write(ctx, c, true, false);
	else if (c->to.option)
		done = xdp_dsr_write(ctx, c, true, true);
	else
		done = xdp_dsr_write(ctx, c, false, true);
	done = done && xdp_write_eth(ctx, &c->path, c->pkt.family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6));
	return done ? XDP_WRITTEN : XDP_BROKEN;
}

#endif
