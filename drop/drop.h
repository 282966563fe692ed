/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counting how packets leave a hook (per packet), and dropping them with a reason. */
#ifndef MYELIN_DROP_H
#define MYELIN_DROP_H

#include "../event/trace.h"

/* Counts a packet by hook and outcome. bytes: its length. Cost: per packet. */
INLINE void count_at(struct cpu *c, __u32 hook, __u32 outcome, __u32 bytes)
{
	struct counter *n;

	/* The compiler would remove the mask if it knew that it changes nothing, but the verifier requires it. */
	if (!__builtin_constant_p(outcome))
		barrier_var(outcome);
	n = &c->counters[hook & (HOOKS - 1)][outcome & (OUTCOME_SLOTS - 1)];
	n->packets++;
	n->bytes += bytes;
}

/* Counts the packet in c->pkt. Cost: per packet. */
INLINE void count_bytes(struct cpu *c, __u32 outcome, __u32 bytes)
{
	count_at(c, c->pkt.hook, outcome, bytes);
}

INLINE void count(const struct __sk_buff *skb, struct cpu *c, __u32 outcome)
{
	count_bytes(c, outcome, skb->len);
}

/* Drops a packet for a reason, which is counted and sent as an event. The only way to drop one in tc. */
INLINE int drop(struct __sk_buff *skb, struct cpu *c, enum outcome reason)
{
	count(skb, c, reason);
	event_send(skb, EVENT_DROP, reason);
	return TC_ACT_SHOT;
}

/* Passes a packet to the host's stack. Cost: per packet. */
INLINE int pass(struct __sk_buff *skb, struct cpu *c)
{
	count(skb, c, FORWARD_STACK);
	if (c->pkt.family)
		trace(skb, c, FORWARD_STACK);
	return TC_ACT_OK;
}

#endif
