/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which flow makes room when there is no room for another NAT entry: an expired one, one whose client has proven
 * nothing, such as those of a SYN flood, or one that is idle. The kernel's LRU maps would evict by age alone, so that a
 * flood ends flows in use. Searched in the order in which flows began.
 */
#ifndef MYELIN_EVICT_H
#define MYELIN_EVICT_H

#include "nat_entry.h"

#define NAT_EVICT_ATTEMPTS 64     /* flows to look at */
#define NAT_EVICT_IDLE_SECONDS 60 /* flows in use are not idle for longer */

/* How readily a flow makes room, most readily first. */
enum evict_rank {
	EVICT_NOW,   /* expired, closed, without its backend, or the client has proven nothing */
	EVICT_IDLE,
	EVICT_NEVER, /* in use */
};

/*
 * Whether the client has shown that it receives replies; with DSR, which hides that, that it sends more than once. A
 * flow that a peer has sent has no packets.
 */
INLINE bool nat_entry_proven(const struct nat_entry *t, __u8 proto)
{
	if (proto == IPPROTO_TCP)
		return nat_entry_established(t) && !nat_entry_closing(t);
	return t->flags & NAT_ENTRY_DSR ? t->packets[SIDE_CLIENT] != 1 : t->flags & NAT_ENTRY_REPLIED;
}

INLINE __u32 evict_rank(const struct nat_entry *t, __u8 proto)
{
	if (t->flags & NAT_ENTRY_GONE || nat_entry_expired(t, proto) || !nat_entry_proven(t, proto))
		return EVICT_NOW;
	return clock_now() - t->seen > NAT_EVICT_IDLE_SECONDS * config.hz ? EVICT_IDLE : EVICT_NEVER;
}

/* Returns the place of the next flow in the ring. */
INLINE struct nat_tuple *nat_ring_advance(struct cpu *c)
{
	__u32 at = c->nat_ring_next;

	if (unlikely(!at || at >= config.nat_entry_max)) /* CPUs begin at different places */
		at = bpf_get_prandom_u32() % config.nat_entry_max;
	c->nat_ring_next = at + 1;
	return bpf_map_lookup_elem(&nat_ring, &at);
}

/* Adds the flow with the key c->nat_key to the ring. Cost: per flow. */
INLINE void nat_ring_put(struct cpu *c)
{
	struct nat_tuple *k = nat_ring_advance(c);

	if (k)
		*k = c->nat_key;
}

/* Evicts the next flow in the ring if its rank is not above the given one. Sets c->rival_key and c->reply_key. */
APART int nat_evict_next(__u32 rank)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;
	struct nat_tuple *k;

	if (!c)
		return 0;
	k = nat_ring_advance(c);
	if (!k || !k->proto)
		return 0;
	c->rival_key = *k;
	t = bpf_map_lookup_elem(&nat_entries, &c->rival_key);
	if (!t || evict_rank(t, c->rival_key.proto) > rank)
		return 0;
	nat_entry_delete(c, &c->rival_key, t);
	c->nat_evicted++;
	return 1;
}

/* Evicts a flow. Returns 0 if those that were looked at are in use. Slow path. */
APART int nat_evict(void)
{
	__u32 i;

	for (i = 0; i < NAT_EVICT_ATTEMPTS; i++) {
		if (nat_evict_next(i < NAT_EVICT_ATTEMPTS / 2 ? EVICT_NOW : EVICT_IDLE))
			return 1;
	}
	return 0;
}

#endif
