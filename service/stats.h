/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counters by Service and backend. Each CPU has its own, which it changes without atomics: hooks run with bottom halves
 * disabled.
 */
#ifndef MYELIN_SERVICE_STATS_H
#define MYELIN_SERVICE_STATS_H

#include "row.h"

/*
 * Returns the index of the counters of a Service's backend, 0 if it has none of its own. Cost: per flow; one lookup if
 * the backend's entry has that of another Service, or none.
 */
INLINE __u16 service_stat_find(__u32 service, const struct backend *b)
{
	struct member_key key = { .addr = b->addr, .service = service, .port = b->port, .proto = b->proto };
	__u32 *member;

	if (likely(b->stat && (b->service_high << 16 | b->service_low) == service))
		return b->stat;
	member = bpf_map_lookup_elem(&members, &key);
	return member ? *member >> MEMBER_STAT_SHIFT : 0;
}

INLINE struct service_stat *service_stat_at(__u32 stat)
{
	return bpf_map_lookup_elem(&service_stats, &stat);
}

/* Counts a packet of a side, an enum service_side. Cost: per packet, one lookup in an array of the CPU. */
INLINE void service_stat_count(__u32 stat, int side, __u32 length)
{
	struct service_stat *s = service_stat_at(stat);

	if (unlikely(!s))
		return;
	s->packets[side]++;
	s->bytes[side] += length;
}

/* Counts a new flow and its first packet, a request. Cost: per flow. */
INLINE void service_stat_first(__u32 stat, __u32 length)
{
	struct service_stat *s = service_stat_at(stat);

	if (!s)
		return;
	s->flows++;
	s->packets[0]++;
	s->bytes[0] += length;
}

/*
 * Counts a new flow that was translated at a socket. Atomic, since softirqs can interrupt programs at sockets. Cost:
 * per connection.
 */
INLINE void service_stat_connect(__u32 stat)
{
	struct service_stat *s = service_stat_at(stat);

	if (s)
		__sync_fetch_and_add(&s->flows, 1);
}

#endif
