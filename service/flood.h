/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * New flows in a flood. Above a rate, flows that need no NAT entry get none: those with DSR for which a Maglev table
 * selects the same backend each time. When there is no room for entries, a Service may begin as many flows as are left
 * for all others (a dynamic threshold, as in share.h), so that a flood of one does not keep others from evicting it.
 */
#ifndef MYELIN_FLOOD_H
#define MYELIN_FLOOD_H

#include "evict.h"

#define FLOOD_CELLS 256 /* Services whose numbers have the same remainder share one */

/* NAT entries that the CPU has inserted since a clock tick. */
struct flow_rate {
	__u32 since;
	__u32 flows;
};

/* Element 0 counts all flows, the others those of Services. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOOD_CELLS);
	__type(key, __u32);
	__type(value, struct flow_rate);
} flow_rates SEC(".maps");

/*
 * How many flows per second a CPU inserts entries for even if they need none. Set by the agent, 0: without limit.
 */
__u32 new_flow_rate;

INLINE __u32 flood_cell(__u32 service)
{
	return 1 + service % (FLOOD_CELLS - 1);
}

/* Returns the element, with counts of the current second. Cost: per flow. */
INLINE struct flow_rate *flow_rate_now(__u32 cell)
{
	struct flow_rate *r = bpf_map_lookup_elem(&flow_rates, &cell);
	__u32 now = clock_now();

	if (r && now - r->since >= config.hz) {
		r->since = now;
		r->flows = 0;
	}
	return r;
}

/* Counts the flow c->nat_entry. Cost: per flow. */
INLINE void flood_count(const struct cpu *c)
{
	struct flow_rate *all = flow_rate_now(0), *own = flow_rate_now(flood_cell(c->nat_entry.service));

	if (all)
		all->flows++;
	if (own)
		own->flows++;
}

/* Whether the flow can be forwarded without an entry. */
INLINE bool nat_entry_optional(const struct nat_entry *n)
{
	return n->flags & NAT_ENTRY_DSR && n->consistent;
}

/* Whether the flow c->nat_entry is to be forwarded without an entry. Cost: per flow. */
INLINE bool flood_stateless(struct cpu *c)
{
	struct flow_rate *all;

	if (!nat_entry_optional(&c->nat_entry) || !new_flow_rate)
		return false;
	all = flow_rate_now(0);
	if (!all || all->flows < new_flow_rate)
		return false;
	c->stateless++;
	return true;
}

/* Whether the Service of c->nat_entry may evict a flow. Slow path. */
INLINE bool flood_may_evict(const struct cpu *c)
{
	struct flow_rate *all = flow_rate_now(0), *own = flow_rate_now(flood_cell(c->nat_entry.service));

	return !new_flow_rate || !all || !own || own->flows + all->flows <= 2 * new_flow_rate;
}

#endif
