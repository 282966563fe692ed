/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets from a wire to an address of the node that pods are masqueraded to. */
#ifndef MYELIN_NAT_HOST_H
#define MYELIN_NAT_HOST_H

#include "../flow/host.h"
#include "nat_in.h"

/* Handles a packet to the node's own address: it is for the host, or for a masqueraded pod. */
APART int from_wire_host(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	c->pkt.for_host = true;
	outcome = l4_parse(skb, &c->pkt) ? NEXT_CONTINUE : nat_in(skb); /* the host's stack may parse more */
	if (outcome == NEXT_CONTINUE)
		return host_pass(skb, c);
	if (outcome == DROP_TTL)
		return icmp_refuse(skb, outcome, 0);
	if (outcome)
		return refuse_flow(skb, c, outcome);
	return path_forward(skb, c, &c->path, c->path.action, HOOK_FROM_WIRE);
}

#endif
