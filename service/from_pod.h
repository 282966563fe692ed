/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services for packets from pods: requests that no socket hook translated, and replies of pods that are backends. */
#ifndef MYELIN_SERVICE_FROM_POD_H
#define MYELIN_SERVICE_FROM_POD_H

#include "decide.h"
#include "translate.h"

/*
 * Finds the path of the rewritten packet, which a pod sent, and sets c->path. Returns NEXT_FORWARD or a drop reason.
 * Cost: per packet.
 */
INLINE enum next service_path_pod(struct __sk_buff *skb, struct cpu *c)
{
	struct addr dst = c->pkt.dst;
	struct cached_path *p;
	enum next outcome = NEXT_FORWARD;

	c->pkt.dst = c->to.dst;
	p = path_find(&c->pkt, false);
	if (likely(p)) {
		c->path = p->path;
		c->snat = p->snat;
	} else {
		outcome = decide(skb);
		if (!outcome && c->path.action != PATH_RESOLVE)
			path_store(c, false);
		path_via_neighbour(&c->path);
	}
	c->pkt.dst = dst;
	return outcome;
}

/* Finds the path of a pod's reply; c->path leads to the address that the backend knows the client by. */
INLINE enum next service_path_reply(struct __sk_buff *skb, struct cpu *c)
{
	if (addr_equal(&c->to.dst, &c->pkt.dst))
		return NEXT_FORWARD;
	return cross_family(c) ? service_path(skb, c) : service_path_pod(skb, c);
}

/* Whether the flow of the pod needs SNAT; c->snat is the address then. */
INLINE bool service_needs_snat(struct cpu *c)
{
	if (addr_equal(&c->to.dst, &c->pkt.src)) {
		gateway_addr(&c->snat, c->pkt.family == 6); /* the pod would drop a packet from its own address */
		return true;
	}
	return c->path.flags & PATH_MASQUERADE;
}

/*
 * Handles a packet from a pod to an address that may be a Service's. Returns NEXT_FORWARD, NEXT_CONTINUE or a drop
 * reason.
 */
INLINE enum next service_from_client(struct __sk_buff *skb, struct cpu *c)
{
	int outcome, found = service_request(skb, c, SCOPE_INTERNAL);

	if (found == NEXT_CONTINUE && c->path.flags & PATH_FRONTEND && address_owner(&c->pkt.dst) == OWNER_OTHER)
		return DROP_NO_SERVICE;
	if (found != NEXT_FORWARD && found != NEXT_NEW_FLOW)
		return found;
	outcome = service_path_pod(skb, c);
	if (outcome || found == NEXT_FORWARD)
		return outcome;
	return service_connect(skb, c, service_needs_snat(c) ? &c->snat : NULL);
}

/*
 * Handles a packet from a pod on a path with flags of Services (c->path). Returns NEXT_FORWARD, NEXT_CONTINUE or a drop
 * reason. Cost: per packet of such a path.
 */
APART enum next service_from_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse_likely_plain(skb, &c->pkt))
		return NEXT_CONTINUE;
	if (l4_is_icmp_error(&c->pkt))
		return service_error(skb, c);
	if (!proto_has_ports(c->pkt.proto))
		return NEXT_CONTINUE;
	if (c->path.flags & PATH_ANSWERS) {
		if (service_answer(c, skb->len))
			return service_path_reply(skb, c);
	}
	if (c->path.flags & PATH_FRONTEND || (c->path.flags & PATH_NODE_PORTS && node_port_may_be(&c->pkt)))
		return service_from_client(skb, c);
	return NEXT_CONTINUE;
}

#endif
