/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shares of the conntrack tables. An endpoint may have as many entries as are left for all others (a dynamic threshold,
 * Choudhury and Hahne 1998): one endpoint alone gets half of a table, two get a third each, and their entries never
 * evict those of others. The agent corrects the counts; without an agent, shares are not enforced.
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
	SHARE_SLOTS = 4096, /* per kind, a power of 2; endpoints whose slots have the same remainder have one share */
};

/*
 * Number of entries by kind and endpoint: the agent's last count, and those created since. Element 0 has the total.
 * While the datapath is reloaded with a larger table, the count of an endpoint that is lent room may be below 0.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent reads all of it often */
	__uint(max_entries, SHARE_KINDS * SHARE_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} shares SEC(".maps");

/* Clock tick until which the counts are valid; 0: they are not. */
__u32 shares_until;

/* Returns the index of an endpoint's count. Only slot 0, which is no endpoint, has index 0. */
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

/*
 * Counts another entry of the endpoint in a table of the given size. Returns false if the endpoint has used up its
 * share; entries of slot 0, which is no endpoint, have no limit. Cost: per flow.
 */
INLINE bool share_take(__u32 kind, __u32 slot, __u32 size)
{
	__u32 *all = share_at(kind, 0), *own, cell = share_cell(slot);

	if (!all)
		return true;
	if (cell) {
		own = share_at(kind, cell);
		if (!own)
			return true;
		if ((__s32)(*own + *all) >= (__s32)size && shares_until && clock_before(clock_now(), shares_until))
			return false;
		__sync_fetch_and_add(own, 1);
	}
	__sync_fetch_and_add(all, 1);
	return true;
}

#endif
