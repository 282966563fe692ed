/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What wires bring besides packets for pods. */
#ifndef MYELIN_FROM_WIRE_H
#define MYELIN_FROM_WIRE_H

#include "../policy/prefilter.h"
#include "dsr.h"
#include "encap.h"

/* What wires bring that is in a tunnel, is not wanted, or is for a Service's backend behind us. Returns a verdict, or -1 if it goes on. Cost: per packet. */
INLINE int from_wire_extra(struct __sk_buff *skb, struct cpu *c)
{
	int outcome;

	if (config.tunnel && skb->pkt_type != PACKET_HOST && skb->ifindex == config.tunnel_ifindex)
		bpf_skb_change_type(skb, PACKET_HOST); /* who sent it by tunnel doesn't know our MAC */
	if (config.prefilter && unlikely(prefilter_tc(skb, &c->pkt)))
		return drop(skb, c, DROP_PREFILTER);
	if (config.direct && config.lb_dispatch && unlikely(encap_is(skb, &c->pkt)) && (outcome = encap_pull(skb)))
		return drop(skb, c, outcome);
	if (config.direct && unlikely(dsr_may_be(skb, &c->pkt)) && (outcome = dsr_accept(skb)))
		return drop(skb, c, outcome);
	return -1;
}

#endif
