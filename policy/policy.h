/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who may talk to whom: asked when a flow begins, and again when what was said may have changed. */
#ifndef MYELIN_POLICY_H
#define MYELIN_POLICY_H

#include "../bpf/cpu.h"
#include "pair.h"

/* By slot. No row: anything goes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct endpoint_policy);
} policies SEC(".maps");

/* Identities of single addresses: pods, nodes, and those that rules name. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, __u32);
} peers SEC(".maps");

/* Identities of prefixes, where an address has no row of its own. */
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

/* Whether policies speak of the endpoint. Slow path. */
INLINE bool policy_selects(__u16 slot)
{
	__u32 key = slot;

	return slot && bpf_map_lookup_elem(&policies, &key);
}

#define IDENTITY_UNKNOWN 0
#define IDENTITY_WORLD4 9
#define IDENTITY_WORLD6 10

/* What is known of an address, or else of the longest prefix around it; NULL if nothing is. Cost: a look-up, or two. */
INLINE __u32 *policy_address_find(void *addresses, void *prefixes, const struct addr *a)
{
	struct prefix_key key = { .length = 128 };
	__u32 *known = bpf_map_lookup_elem(addresses, a);

	if (known)
		return known;
	__builtin_memcpy(key.addr, a, sizeof(key.addr));
	return bpf_map_lookup_elem(prefixes, &key);
}

/* Whose an address is. Cost: per flow. */
INLINE __u32 policy_identity(const struct addr *a)
{
	__u32 *id = policy_address_find(&peers, &peer_prefixes, a);

	if (id)
		return *id;
	return addr_is4(a) ? IDENTITY_WORLD4 : IDENTITY_WORLD6;
}

/* The bit that says that there are no rows of the protocol. */
INLINE __u32 policy_absent(__u8 proto)
{
	if (proto == IPPROTO_TCP)
		return POLICY_NO_TCP;
	return proto == IPPROTO_UDP ? POLICY_NO_UDP : POLICY_NO_OTHER;
}

/* The longest row of the class for the CPU's question. NULL only while rows are being written. Cost: per flow. */
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
 * One end's class for its peer, into the CPU's question; no class, where anything goes. Returns 0 or a drop reason. Cost: once for two ends, while nothing
 * changes.
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
	policy->class[direction].lengths = (class ? class->lengths : e->lengths[direction][ipv6]) | (e->audit ? POLICY_AUDIT : 0);
	return 0;
}

/* The same of both ends. Who they are is kept, unless one is not known yet. Cost: per flow. */
INLINE int policy_classes(struct policy_context *policy)
{
	__u64 generation = epoch_generation(); /* before anything is looked up: what changes meanwhile is asked again */
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

/* What one end's class says. Returns 0 or a drop reason. Cost: per flow. */
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
 * Asks the policies of both ends, as far as they are ours, what the CPU wants to know. Returns 0 or a drop reason; what only one end that is audited
 * denies, the other end may still deny. Cost: per flow.
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
