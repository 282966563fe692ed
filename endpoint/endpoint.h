/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Endpoints, which are pods and the host, by address and by link; and the epochs that invalidate cached decisions. */
#ifndef MYELIN_ENDPOINT_H
#define MYELIN_ENDPOINT_H

#include "../bpf/filter.h"

enum endpoint_flag {
	ENDPOINT_HOST = 1,       /* an address of the node itself */
	ENDPOINT_MASQUERADE = 2, /* an address of the node that pods are masqueraded to */
	ENDPOINT_NO_PORTS = 4,   /* an address of the node that serves no node ports */
};

enum endpoint_slot {
	SLOT_NONE, /* no endpoint */
	SLOT_HOST, /* the node itself */
};

struct endpoint {
	__u32 ifindex; /* of the pod link's host side; 0 for the host */
	__u16 slot;
	__u8 flags; /* enum endpoint_flag */
	__u8 pad;
	struct mac pod_mac;
	struct mac link_mac; /* of the pod link: the pod's gateway has it */
};

/* Endpoints by address. Memory grows with the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* The addresses in endpoints. */
struct address_filter own_filter SEC(".data.own_filter");

/* Whether the address is the node's or one of its pods'. Cost: a load; a lookup if it is, and for few others. */
INLINE bool address_own(const struct addr *a)
{
	return unlikely(address_filter_has(&own_filter, a)) && bpf_map_lookup_elem(&endpoints, a);
}

struct pod_link {
	struct addr addr4; /* mapped; zero if the pod has none */
	struct addr addr6;
	__u64 netns_cookie; /* identifies the pod in programs at sockets; 0: unknown */
	struct endpoint endpoint;
};

/* Pod links by ifindex. Memory grows with the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct pod_link);
} pod_links SEC(".maps");

/* The epochs, which are only incremented. */
struct epoch_table {
	__u32 epoch[65536]; /* by endpoint slot; slot 0: routes and everything global */
	/*
	 * Changes whenever an epoch does. The agent increments the upper half, after the epoch of the slot. The
	 * datapath increments the lower half, which invalidates all cached decisions (endpoint_mark_services).
	 */
	__u64 generation;
	__u8 uses_services[65536]; /* by slot; 1: some of the endpoint's packets belong to flows of Services */
};

/* A separate section, like that of own_filter. */
struct epoch_table epochs SEC(".data.epochs");

/* Returns the generation: decisions that were made or revalidated in the same one are valid. Cost: per packet. */
INLINE __u64 epoch_generation(void)
{
	return epochs.generation;
}

/*
 * Returns the sum of the epochs that a decision for two endpoints depends on. As no epoch is ever decremented, the sum
 * changes exactly when one of them does. Slot 0, for no endpoint, only adds the global epoch once more.
 */
INLINE __u32 epoch_sum(__u16 src, __u16 dst)
{
	return epochs.epoch[0] + epochs.epoch[src] + epochs.epoch[dst] + (__u32)epochs.generation;
}

/* Whether some of the endpoint's packets belong to flows of Services. False for slot 0. */
INLINE bool endpoint_uses_services(__u16 slot)
{
	return epochs.uses_services[slot];
}

/*
 * Marks the endpoint as a client or backend of Services, so that its packets are looked up in nat_entries, and
 * invalidates cached decisions. Cost: once per pod.
 */
INLINE void endpoint_mark_services(__u16 slot)
{
	if (!slot || epochs.uses_services[slot])
		return;
	epochs.uses_services[slot] = 1;
	__sync_fetch_and_add(&epochs.generation, 1);
}

#endif
