/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of policies, and lookups in them. */
#ifndef MYELIN_POLICY_LOOKUP_H
#define MYELIN_POLICY_LOOKUP_H

#include "../bpf/cpu.h"
#include "pair.h"

/* The policies of endpoints, by slot. An endpoint without an entry has none: everything is allowed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct endpoint_policy);
} policies SEC(".maps");

/* Identities of single addresses: pods, nodes, and addresses that rules name. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, __u32);
} peers SEC(".maps");

/* Identities of prefixes, for addresses without an entry of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
} peer_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct peer_class_key);
	__type(value, struct peer_class);
} peer_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct verdict_key);
	__type(value, struct verdict);
} verdicts SEC(".maps");

/* Whether any policy selects the endpoint. Slow path. */
INLINE bool policy_selects(__u16 slot)
{
	__u32 key = slot;

	return slot && bpf_map_lookup_elem(&policies, &key);
}

#define IDENTITY_UNKNOWN 0
#define IDENTITY_WORLD4 9
#define IDENTITY_WORLD6 10
#define IDENTITY_DERIVED (1u << 31)    /* numbers that stand for an identity and address sets (FirstDerived in Go) */
#define IDENTITY_IN_CLUSTER (1u << 30) /* of those: addresses of pods and nodes (InCluster in Go) */

/* Finds the value of an address, or of the longest prefix that contains it. NULL: none. Cost: one or two lookups. */
INLINE __u32 *policy_address_find(void *addresses, void *prefixes, const struct addr *a)
{
	struct prefix_key key = { .length = 128 };
	__u32 *known = bpf_map_lookup_elem(addresses, a);

	if (known)
		return known;
	__builtin_memcpy(key.addr, a, sizeof(key.addr));
	return bpf_map_lookup_elem(prefixes, &key);
}

/* Returns the identity of an address. Cost: per flow. */
INLINE __u32 policy_identity(const struct addr *a)
{
	__u32 *id = policy_address_find(&peers, &peer_prefixes, a);

	if (id)
		return *id;
	return addr_is4(a) ? IDENTITY_WORLD4 : IDENTITY_WORLD6;
}

/* Whether addresses with the identity are outside the cluster. */
INLINE bool policy_outside(__u32 identity)
{
	if (identity & IDENTITY_DERIVED)
		return !(identity & IDENTITY_IN_CLUSTER);
	return identity == IDENTITY_WORLD4 || identity == IDENTITY_WORLD6;
}

/* Returns the bit of lengths which says that a class has no entries of the protocol. */
INLINE __u32 policy_absent(__u8 proto)
{
	if (proto == IPPROTO_TCP)
		return POLICY_NO_TCP;
	return proto == IPPROTO_UDP ? POLICY_NO_UDP : POLICY_NO_OTHER;
}

/*
 * Finds the longest entry of the class that matches protocol and port of the lookup context. Returns NULL only while
 * entries are being written. Cost: per flow.
 */
INLINE struct verdict *policy_verdict_find(const struct policy_context *policy, const struct peer_class *class)
{
	struct verdict_key key = { .class = class->class, .proto = policy->proto };
	__u32 lengths = class->lengths;
	struct verdict *v;
	int bits;

	for (bits = lengths & policy_absent(policy->proto) ? -1 : 16; bits >= 0; bits--) {
		if (!(lengths & 1u << bits))
			continue;
		key.bits = bits;
		key.port = policy->port & 0xffffu << (16 - bits);
		v = bpf_map_lookup_elem(&verdicts, &key);
		if (v)
			return v;
	}
	key.bits = 0;
	key.port = 0;
	key.proto = 0;
	return bpf_map_lookup_elem(&verdicts, &key);
}

/* Records in the lookup context that the verdict decides one direction, and counts it. Cost: per flow. */
INLINE void policy_verdict_count(struct policy_context *policy, __u32 direction, struct verdict *v)
{
	policy->rule[direction & 1] = v->rule;
	__sync_fetch_and_add(&v->hits, 1);
	v->last = bpf_jiffies64();
}

#endif
