/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forwarding decisions for packets from pods, Services included. Slow path. */
#ifndef MYELIN_SERVICE_DECIDE_H
#define MYELIN_SERVICE_DECIDE_H

#include "address.h"
#include "../route/decide.h"

/*
 * Adds to c->path what Services need; outcome is the result of the decision without Services. Returns NEXT_FORWARD or a
 * drop reason.
 */
INLINE enum next decide_service(struct cpu *c, int outcome)
{
	struct path *p = &c->path;

	if (endpoint_uses_services(p->src_slot) || endpoint_uses_services(p->dst_slot))
		p->flags |= PATH_ANSWERS;
	if (frontend_address(&c->pkt.dst))
		p->flags |= PATH_FRONTEND;
	else if (node_ports_address(&c->pkt.dst))
		p->flags |= PATH_NODE_PORTS;
	if (!(p->flags & PATH_FRONTEND))
		return outcome;
	/* The addresses of most Services are not routed: the packet need not have a route. */
	if (outcome)
		p->action = PATH_STACK;
	return NEXT_FORWARD;
}

/* Decides c->path for a packet from a pod. Returns NEXT_FORWARD or a drop reason. */
APART enum next decide(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	enum next outcome;

	if (!c)
		return DROP_NO_ENDPOINT;
	outcome = decide_addresses(skb, c);
	if (outcome)
		return outcome;
	outcome = decide_route(skb, c);
	return config.services ? decide_service(c, outcome) : outcome;
}

/*
 * Decides and caches c->path for a packet that a pod sends. Returns TC_ACT_UNSPEC, or a verdict if the packet was
 * dropped. Slow path.
 */
APART int from_pod_decide(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	outcome = packet_family_off(&c->pkt) ? DROP_UNSUPPORTED_FAMILY : decide(skb);
	if (outcome == DROP_NO_ROUTE || outcome == DROP_BLACKHOLE)
		return icmp_refuse(skb, outcome, 0);
	if (outcome)
		return drop(skb, c, outcome);
	if (c->path.action != PATH_RESOLVE)
		path_store(c, false);
	return TC_ACT_UNSPEC;
}

#endif
