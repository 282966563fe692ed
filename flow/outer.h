/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets of the tunnel, of WireGuard or of IPsec as the network sees them, on a wire. Those to the node's own address
 * are for its stack, which decapsulates them: no Service, NAT entry or policy is for their port (outer_fast).
 */
#ifndef MYELIN_OUTER_H
#define MYELIN_OUTER_H

#include "../route/decide.h"

/*
 * Whether the packet is an outer one. Reads its ports, except behind extension headers: if layer 4 has been parsed, it
 * may be behind them. Cost: per packet of a wire.
 */
INLINE bool outer_is(const struct __sk_buff *skb, struct packet *pkt)
{
	if (pkt->proto != config.outer_proto || pkt->l4 > L3 + sizeof(struct ipv6hdr))
		return false;
	return config.outer_proto != IPPROTO_UDP || (l4_peek(skb, pkt) && pkt->dport == bpf_htons(config.outer_port));
}

/* Whether packets like this one, of which outer_is is true, are remembered. Cost: per outer packet. */
INLINE bool outer_find(const struct __sk_buff *skb, const struct packet *pkt)
{
	return path_lookup(path_index(pkt, false), &pkt->src, &pkt->dst, skb->ifindex | PATH_OUTER, false);
}

/*
 * Remembers for a second that outer packets from a node to this node's own address, whose endpoint is e, are for
 * the stack. Returns whether the CPU's packet is one of them. Its source has been checked. Slow path.
 */
INLINE bool outer_store(const struct __sk_buff *skb, struct cpu *c, const struct endpoint *e)
{
	__u32 ifindex = c->pkt.ifindex;

	if (!e || !(e->flags & ENDPOINT_HOST) || tunnel_device(skb) || !outer_is(skb, &c->pkt) ||
	    addr_is4(&c->pkt.dst) != !config.outer6)
		return false;
	__builtin_memset(&c->path, 0, sizeof(c->path));
	decide_pod(&c->path, e);
	c->path.expires = clock_now() + config.hz;
	c->path.epoch = epoch_sum(0, e->slot);
	c->pkt.ifindex = ifindex | PATH_OUTER;
	path_store(c, false);
	c->pkt.ifindex = ifindex;
	return true;
}

#endif
