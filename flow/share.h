/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shares of the conntrack tables. An endpoint may have as many entries as are left for all others (a dynamic threshold, Choudhury and Hahne 1998): one
 * endpoint alone gets half of a table, two get a third each, and entries that others have are never evicted for theirs. The agent corrects the counts,
 * so that none is enforced without it.
 */
#ifndef MYELIN_SHARE_H
#define MYELIN_SHARE_H

#include "../bpf/common.h"

enum share_kind {
	SHARE_FLOWS,
	SHARE_NAT_ENTRIES,
	SHARE_KINDS,
};

enum share_bound {
	SHARE_SLOTS = 4096, /* per kind, a power of 2; endpoints with the same remainder have one share */
};

/* Entries by kind and endpoint: as the agent counted last, and those made since. Where slot 0 would be: those of all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SHARE_KINDS * SHARE_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} shares SEC(".maps");

/* Clock tick until which the counts are good; 0: they are not. */
__u32 shares_until;

/* Where an endpoint's count is: 0 is no endpoint's. */
INLINE __u32 share_cell(__u32 slot)
{
	__u32 cell = slot & (SHARE_SLOTS - 1);

	return slot && !cell ? 1 : cell;
}

INLINE __u32 *share_at(__u32 kind, __u32 cell)
{
	__u32 i = kind * SHARE_SLOTS + cell;

	return bpf_map_lookup_elem(&shares, &i);
}

/* Counts another entry of the endpoint in a table of that size. False if that would be more than its share; slot 0 is no endpoint's. Cost: per flow. */
INLINE bool share_take(__u32 kind, __u32 slot, __u32 size)
{
	__u32 *all = share_at(kind, 0), *own, cell = share_cell(slot);

	if (!all)
		return true;
	if (cell) {
		own = share_at(kind, cell);
		if (!own)
			return true;
		if (*own + *all >= size && shares_until && clock_before(clock_now(), shares_until))
			return false;
		__sync_fetch_and_add(own, 1);
	}
	__sync_fetch_and_add(all, 1);
	return true;
}

#endif
