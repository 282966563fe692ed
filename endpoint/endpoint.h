/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who lives on this node: pods and the host, found by address or by link, and the epochs that make cached decisions stale. */
#ifndef MYELIN_ENDPOINT_H
#define MYELIN_ENDPOINT_H

#include "../bpf/common.h"

enum endpoint_flag {
	ENDPOINT_HOST = 1,       /* an address of the node itself */
	ENDPOINT_MASQUERADE = 2, /* … that pods are masqueraded to */
	ENDPOINT_NO_PORTS = 4,   /* … on which no node port answers */
};

enum endpoint_slot {
	SLOT_NONE,
	SLOT_HOST, /* the node itself */
};

struct endpoint {
	__u32 ifindex; /* of the pod link's host side; 0 for the host */
	__u16 slot;
	__u8 flags;
	__u8 pad;
	struct mac pod_mac;
	struct mac link_mac; /* of the host side: the pod's gateway MAC */
};

/* By address. Grows with the work. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

#define OWN_BITS 16

/* A set bit for the hash of each address in endpoints, so that other addresses need no lookup. Bits stay when an address goes, until the next start. */
struct own_filter {
	__u64 word[1 << (OWN_BITS - 6)];
};

/* A section of its own makes a map of its own, which is pinned, and read without a lookup. */
struct own_filter own_filter SEC(".data.own_filter");

/* Whether the address is this node's or one of its pods'. Cost: a load; a lookup for addresses that are, and for few others. */
INLINE bool address_own(const struct addr *a)
{
	__u32 bit = addr_hash(a) >> (64 - OWN_BITS);

	return unlikely(own_filter.word[bit >> 6] & 1ULL << (bit & 63)) && bpf_map_lookup_elem(&endpoints, a);
}

struct pod_link {
	struct addr addr4; /* mapped; zero if the pod has none */
	struct addr addr6;
	__u64 netns_cookie; /* by which hooks at sockets know the pod; 0: not known */
	struct endpoint endpoint;
};

/* By the ifindex of the pod link's host side. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct pod_link);
} pod_links SEC(".maps");

/* By slot; slot 0 is for routes and everything global. Only ever counted up. */
struct epoch_table {
	__u32 epoch[65536];
	/*
	 * Moves whenever anything does. Lower half: how often the datapath itself found that kept decisions are stale; upper half: how often the agent did,
	 * whatever the slot, counted up after the slot's epoch.
	 */
	__u64 generation;
	__u8 uses_services[65536]; /* 1: some of the endpoint's packets are a Service's */
};

/* A section of its own makes a map of its own, which is pinned, and read without a look-up. */
struct epoch_table epochs SEC(".data.epochs");

/* Moves whenever any epoch does: a decision made in the same one is still right. */
INLINE __u64 epoch_generation(void)
{
	return epochs.generation;
}

/* The sum changes if and only if one of its terms does, since none is ever counted down. A slot of 0 only counts the global one once more. */
INLINE __u32 epoch_sum(__u16 src, __u16 dst)
{
	return epochs.epoch[0] + epochs.epoch[src] + epochs.epoch[dst] + (__u32)epochs.generation;
}

/* Whether some of the endpoint's packets are a Service's. Slot 0 is nobody's. */
INLINE bool endpoint_uses_services(__u16 slot)
{
	return epochs.uses_services[slot];
}

/* From now on the endpoint's packets are looked at. What was kept for them is decided again. Cost: once a pod. */
INLINE void endpoint_mark_services(__u16 slot)
{
	if (!slot || epochs.uses_services[slot])
		return;
	epochs.uses_services[slot] = 1;
	__sync_fetch_and_add(&epochs.generation, 1);
}

#endif
