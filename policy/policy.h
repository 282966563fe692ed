/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Policy lookup: at connection setup, and again when the verdict may have changed. */
#ifndef MYELIN_POLICY_H
#define MYELIN_POLICY_H

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

/*
 * Looks up the peer's class for one end, into the CPU's lookup context: class 0 if everything is allowed. Returns 0 or
 * a drop reason. Cost: once for each pair of ends and generation.
 */
APART int policy_class(__u32 direction)
{
	struct cpu *c = cpu_this();
	struct peer_class_key key = {};
	struct endpoint_policy *e;
	struct peer_class *class;
	struct policy_context *policy;
	__u32 slot, ipv6;

	if (!c)
		return DROP_POLICY_NO_RULE;
	policy = &c->policy;
	direction &= 1;
	ipv6 = !addr_is4(&policy->src);
	slot = direction == POLICY_EGRESS ? policy->src_slot : policy->dst_slot;
	e = slot ? bpf_map_lookup_elem(&policies, &slot) : NULL;
	key.set = e ? e->set[direction][ipv6] : 0;
	policy->class[direction].class = 0;
	if (!key.set)
		return 0;
	key.identity = policy_identity(direction == POLICY_EGRESS ? &policy->dst : &policy->src);
	if (key.identity == IDENTITY_UNKNOWN) {
		policy->denied = direction + 1;
		return DROP_POLICY_PEER_UNKNOWN;
	}
	class = bpf_map_lookup_elem(&peer_classes, &key);
	policy->class[direction].class = class ? class->class : key.set;
	policy->class[direction].lengths = (class ? class->lengths : e->lengths[direction][ipv6]) |
					   (e->audit ? POLICY_AUDIT : 0);
	return 0;
}

/*
 * Looks up the classes of both ends, into the lookup context, and caches them unless an identity is still unknown.
 * Returns 0 or a drop reason. Cost: per flow.
 */
INLINE int policy_classes(struct policy_context *policy)
{
	__u64 generation = epoch_generation(); /* before the lookups: a later change invalidates the cache entry */
	struct policy_pair *p = policy_pair_at(policy);
	int outcome;

	if (likely(p && policy_pair_matches(p, policy) && p->generation == generation)) {
		__builtin_memcpy(policy->class, p->class, sizeof(policy->class));
		return 0;
	}
	outcome = policy_class(POLICY_EGRESS) ?: policy_class(POLICY_INGRESS);
	if (!outcome && p)
		policy_pair_store(p, policy, generation);
	return outcome;
}

/* Looks up the verdict of one end's class. Returns 0 or a drop reason. Cost: per flow. */
APART int policy_verdict(__u32 direction)
{
	struct cpu *c = cpu_this();
	struct policy_context *policy;
	struct verdict *v;

	if (!c)
		return DROP_POLICY_NO_RULE;
	policy = &c->policy;
	direction &= 1;
	v = policy_verdict_find(policy, &policy->class[direction]);
	if (v) {
		policy->rule[direction] = v->rule;
		__sync_fetch_and_add(&v->hits, 1);
		v->last = bpf_jiffies64();
		if (v->action == POLICY_ALLOW)
			return 0;
	}
	policy->denied = direction + 1;
	policy->audit = !!(policy->class[direction].lengths & POLICY_AUDIT);
	return v && v->action == POLICY_DENY ? DROP_POLICY_DENIED : DROP_POLICY_NO_RULE;
}

/*
 * Looks up the policies of both ends, if they are endpoints of this node. policy is the CPU's lookup context. Returns 0
 * or a drop reason. If one end denies in audit mode, the other end's policies are still looked up. Cost: per flow.
 */
INLINE int policy_lookup(struct policy_context *policy)
{
	int outcome;

	policy->rule[0] = 0;
	policy->rule[1] = 0;
	policy->audit = false;
	policy->denied = 0;
	outcome = policy_classes(policy);
	if (outcome)
		return outcome;
	if (policy->class[POLICY_EGRESS].class)
		outcome = policy_verdict(POLICY_EGRESS);
	if ((outcome && !policy->audit) || !policy->class[POLICY_INGRESS].class)
		return outcome;
	return policy_verdict(POLICY_INGRESS) ?: outcome;
}

#endif
