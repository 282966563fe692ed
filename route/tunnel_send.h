/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that the host's stack sends into the tunnel. */
#ifndef MYELIN_TUNNEL_SEND_H
#define MYELIN_TUNNEL_SEND_H

#include "path.h"

/* Sends a packet of the host to the node that its destination belongs to. Returns a verdict. Cost: per packet. */
INLINE int tunnel_send(struct __sk_buff *skb, struct cpu *c)
{
	struct prefix *prefix = prefix_find(&c->pkt.dst);

	if (!prefix || !(prefix->flags & PREFIX_TUNNEL))
		return drop(skb, c, DROP_NO_TUNNEL_KEY);
	if (!tunnel_key_set(skb, &prefix->via))
		return drop(skb, c, DROP_REWRITE);
	count(skb, c, FORWARD_TUNNEL);
	return TC_ACT_OK;
}

#endif
