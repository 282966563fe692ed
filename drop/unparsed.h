/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dropping packets that were not parsed. */
#ifndef MYELIN_UNPARSED_H
#define MYELIN_UNPARSED_H

#include "drop.h"

/* Drops a packet that was not parsed as IP. */
INLINE int drop_unparsed(struct __sk_buff *skb, struct cpu *c, int parsed)
{
	switch (parsed) {
	case PARSED_TRUNCATED:
		return drop(skb, c, DROP_TRUNCATED);
	case PARSED_BAD:
		return drop(skb, c, DROP_BAD_HEADER);
	case PARSED_MAPPED:
		return drop(skb, c, DROP_MARTIAN);
	default:
		return drop(skb, c, DROP_UNSUPPORTED_L2);
	}
}

/* Drops a packet of a wire without a link-layer header to which the kernel could not add one. */
INLINE int drop_unpushed(struct __sk_buff *skb, enum hook hook)
{
	struct cpu *c = cpu_this();

	if (!c)
		return TC_ACT_SHOT;
	packet_reset(&c->pkt, skb->ifindex, hook);
	packet_unparsed(&c->pkt, PARSED_OTHER);
	return drop(skb, c, DROP_REWRITE);
}

/* Passes a wire's packet of another protocol, and drops one with an invalid header. */
INLINE int from_wire_non_ip(struct __sk_buff *skb, struct cpu *c, int parsed)
{
	return parsed == PARSED_ARP || parsed == PARSED_OTHER ? pass(skb, c) : drop_unparsed(skb, c, parsed);
}

#endif
