/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR by Geneve at the backend's node, in XDP: takes the outer headers off, so that GRO merges what it would not find
 * behind UDP. The packet goes on to from_wire as if it had come without them. Packets with the option that names the
 * frontend are left to from_wire as they are: it trusts the option of packets that it decapsulates itself. So is IPIP,
 * which GRO merges with its outer header (ADR 30).
 */
#ifndef MYELIN_XDP_DECAP_H
#define MYELIN_XDP_DECAP_H

#include "encap.h"
#include "xdp_write.h"

/* Whether the packet may be an encapsulated one. */
INLINE bool xdp_decap_may_be(const struct packet *pkt)
{
	return config.direct && config.lb_dispatch == DISPATCH_GENEVE && pkt->proto == IPPROTO_UDP &&
	       pkt->dport == bpf_htons(GENEVE_PORT);
}

/* Whether the header is that of encap_header_geneve. */
INLINE bool xdp_decap_geneve(const struct geneve_head *g, bool ipv4)
{
	return g->vni == bpf_htonl(config.vni << 8) && !g->version &&
	       g->type == (ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6));
}

/*
 * Reads the inner IP header into pkt. Returns false if it has options or does not fit, or if its source is one of this
 * node's addresses. Each caller passes a constant ipv4, so that offsets are constants.
 */
INLINE bool xdp_decap_inner(const void *data, const void *end, struct packet *pkt, bool ipv4)
{
	const struct geneve_head *g = data + L3 + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	const struct ipv6hdr *ip6 = (const void *)(g + 1);
	const struct iphdr *ip4 = (const void *)(g + 1);

	if ((ipv4 ? (const void *)(ip4 + 1) : (const void *)(ip6 + 1)) > end || !xdp_decap_geneve(g, ipv4))
		return false;
	if (ipv4) {
		if (ip4->version != 4 || ip4->ihl != 5 || (void *)ip4 - data + bpf_ntohs(ip4->tot_len) > pkt->end)
			return false;
		packet_read4(pkt, ip4);
	} else {
		if (ip6->version != 6 || ip6->nexthdr == IPPROTO_DSTOPTS ||
		    (void *)(ip6 + 1) - data + bpf_ntohs(ip6->payload_len) > pkt->end)
			return false;
		packet_read6(pkt, ip6);
	}
	return !address_own(&pkt->src);
}

/* Decapsulates the packet, if its sender is trusted. Always returns XDP_PASS, or XDP_DROP if the frame is broken. */
APART int xdp_decap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct cpu *c = cpu_this();
	__u32 macs[3], size;
	bool ipv4;

	if (!c || !encap_trusted(&c->pkt) || data + L3 > end)
		return XDP_PASS;
	ipv4 = c->pkt.family == 4;
	size = encap_size(&c->pkt);
	if (!(ipv4 ? xdp_decap_inner(data, end, &c->pkt, true) : xdp_decap_inner(data, end, &c->pkt, false)))
		return XDP_PASS;
	__builtin_memcpy(macs, data, sizeof(macs));
	if (bpf_xdp_adjust_head(ctx, size))
		return XDP_PASS;
	data = (void *)(long)ctx->data;
	if (data + L3 > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(data, macs, sizeof(macs));
	((struct ethhdr *)data)->h_proto = ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return XDP_PASS;
}

#endif
