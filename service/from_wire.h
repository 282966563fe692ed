/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Special packets from wires: tunnelled, from blocked CIDRs, or sent by DSR. */
#ifndef MYELIN_FROM_WIRE_H
#define MYELIN_FROM_WIRE_H

#include "../policy/prefilter/prefilter.h"
#include "dsr.h"
#include "encap.h"

/*
 * Handles packets from the tunnel, from blocked CIDRs, and those that DSR sends to a backend of this node; tagged: the
 * packet had a VLAN tag. Returns TC_ACT_UNSPEC if processing continues, or else the program's result. Cost: per packet.
 */
INLINE int from_wire_extra(struct __sk_buff *skb, struct cpu *c, bool tagged)
{
	int outcome;

	c->unwrapped = false;
	if (tunnel_device(skb)) {
		tunnel_receive(skb);
		tunnel_outer(skb, &c->outer);
	}
	if (config.prefilter && unlikely(prefilter_tc(skb, &c->pkt, tagged)))
		return drop(skb, c, DROP_PREFILTER);
	if (config.direct && config.lb_dispatch && unlikely(encap_is(skb, &c->pkt)) && (outcome = encap_pull(skb)))
		return drop(skb, c, outcome);
	if (config.direct && unlikely(dsr_may_be(skb, &c->pkt)) && (outcome = dsr_accept(skb)))
		return drop(skb, c, outcome);
	return TC_ACT_UNSPEC;
}

#endif
