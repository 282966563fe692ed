/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Policies of the node itself: what its own processes get and send by its wires. All of it has rows where policies select the node. */
#ifndef MYELIN_HOST_H
#define MYELIN_HOST_H

#include "track.h"

#define ICMPV6_ROUTER_SOLICITATION 133
#define ICMPV6_REDIRECT 137

/* How IPv6 neighbours find each other (RFC 4861), as ARP does for IPv4: no policy speaks of it. */
INLINE bool host_neighbour(const struct packet *pkt)
{
	return pkt->proto == IPPROTO_ICMPV6 && pkt->icmp_type >= ICMPV6_ROUTER_SOLICITATION && pkt->icmp_type <= ICMPV6_REDIRECT;
}

/* Asks whether the node may get the CPU's packet, or send it (sends). Returns 0 or a drop reason. Cost: per packet of the node's own, where policies are. */
APART int host_judge(struct __sk_buff *skb, __u32 sends)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	int outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	e = bpf_map_lookup_elem(&endpoints, sends ? &c->pkt.src : &c->pkt.dst);
	if (!e || !(e->flags & ENDPOINT_HOST) || !policy_selects(e->slot))
		return 0;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome)
		return outcome;
	if (host_neighbour(&c->pkt))
		return 0;
	__builtin_memset(&c->path, 0, sizeof(c->path));
	c->path.action = PATH_STACK;
	c->path.flags = PATH_TRACKED | PATH_POLICY;
	if (sends)
		c->path.src_slot = e->slot;
	else
		c->path.dst_slot = e->slot;
	c->path.epoch = epoch_sum(0, e->slot);
	c->pkt.slot = e->slot;
	return track_begin(skb);
}

#endif
