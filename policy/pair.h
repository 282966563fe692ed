/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Per-CPU cache of policy classes: the classes that two ends have for each other's policies depend on neither port nor
 * protocol. If the pair is cached, connection setup needs only the verdict on the port. A lost entry costs four
 * lookups.
 */
#ifndef MYELIN_POLICY_PAIR_H
#define MYELIN_POLICY_PAIR_H

#include "../bpf/cpu.h"
#include "../endpoint/endpoint.h"

#define PAIR_BITS 9

struct policy_pair {
	struct addr src;
	struct addr dst;
	__u32 slots; /* policy_pair_slots */
	__u32 pad;
	__u64 generation;           /* epoch_generation before the lookups */
	struct peer_class class[2]; /* by enum policy_direction */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << PAIR_BITS);
	__type(key, __u32);
	__type(value, struct policy_pair);
} policy_pairs SEC(".maps");

/* Returns the only cache entry that can have the pair of the lookup context. */
INLINE struct policy_pair *policy_pair_at(const struct policy_context *policy)
{
	__u32 i = addr_pair_hash(&policy->src, &policy->dst) >> (64 - PAIR_BITS);

	return bpf_map_lookup_elem(&policy_pairs, &i);
}

INLINE __u32 policy_pair_slots(const struct policy_context *policy)
{
	return (__u32)policy->src_slot << 16 | policy->dst_slot;
}

INLINE bool policy_pair_matches(const struct policy_pair *p, const struct policy_context *policy)
{
	return p->slots == policy_pair_slots(policy) && addr_equal(&p->src, &policy->src) &&
	       addr_equal(&p->dst, &policy->dst);
}

INLINE void policy_pair_store(struct policy_pair *p, const struct policy_context *policy, __u64 generation)
{
	p->src = policy->src;
	p->dst = policy->dst;
	p->slots = policy_pair_slots(policy);
	p->generation = generation;
	__builtin_memcpy(p->class, policy->class, sizeof(p->class));
}

#endif
