/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* New flows from outside: whether their packets get another source address. */
#ifndef MYELIN_SERVICE_BEGIN_H
#define MYELIN_SERVICE_BEGIN_H

#include "cross.h"
#include "../route/decide.h"

/*
 * Prepares a new flow from a client of the other family: it needs SNAT, to the node's address or, for pods, the
 * gateway's. Returns NEXT_FORWARD or a drop reason. Cost: per flow.
 */
INLINE enum next cross_begin(struct cpu *c)
{
	c->nat_entry.flags = 0;
	if (!cross_able(&c->pkt))
		return cross_reason(&c->pkt);
	if (c->path.action == PATH_STACK)
		return DROP_CROSS_FAMILY;
	if (c->path.action == PATH_POD)
		gateway_addr(&c->snat, !addr_is4(&c->to.dst));
	return NEXT_FORWARD;
}

/*
 * Prepares a new flow from outside, and sets *snat to the address for SNAT, NULL for none; c->path leads to the
 * backend. Returns NEXT_FORWARD or a drop reason. Cost: per flow.
 */
INLINE enum next service_begin(struct cpu *c, const struct addr **snat)
{
	const struct prefix *p;

	*snat = NULL;
	/* Without a check, a reply to an address of this link would be sent to the link of the backend. */
	if (path_leaves(&c->path) && addr_is_martian(&c->pkt.src))
		return DROP_MARTIAN;
	if (unlikely(cross_family(c))) {
		*snat = &c->snat;
		return cross_begin(c);
	}
	if (path_leaves(&c->path)) {
		if (!(c->nat_entry.flags & NAT_ENTRY_DSR))
			*snat = &c->snat;
		return NEXT_FORWARD;
	}
	c->nat_entry.flags = 0; /* stays on this node: neither DSR nor SNAT */
	if (c->path.action != PATH_STACK || c->path.dst_slot)
		return NEXT_FORWARD;
	/* An entry without DSR and SNAT would outlast that there is no route to another node. */
	p = prefix_find(&c->to.dst);
	return p && p->flags & PREFIX_CLUSTER ? DROP_NO_ROUTE : NEXT_FORWARD;
}

#endif
