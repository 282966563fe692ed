/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who may talk to whom: asked when a flow begins, and again when what was said may have changed. */
#ifndef MYELIN_POLICY_H
#define MYELIN_POLICY_H

#include "../bpf/cpu.h"
#include "row.h"

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
INLINE __u32 *policy_about(void *addresses, void *prefixes, const struct addr *a)
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
	__u32 *id = policy_about(&peers, &peer_prefixes, a);

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

/* The longest row of the class for the CPU's question; lengths says which lengths there are. NULL only while rows are being written. Cost: per flow. */
INLINE struct verdict *policy_find(const struct policy_ask *ask, __u32 class, __u32 lengths)
{
	struct verdict_key key = { .class = class, .proto = ask->proto };
	struct verdict *v;
	int bits;

	for (bits = lengths & policy_absent(ask->proto) ? -1 : 16; bits >= 0; bits--) {
		if (!(lengths & 1u << bits))
			continue;
		key.bits = bits;
		key.port = ask->port & 0xffffu << (16 - bits);
		v = bpf_map_lookup_elem(&verdicts, &key);
		if (v)
			return v;
	}
	key.bits = 0;
	key.port = 0;
	key.proto = 0;
	return bpf_map_lookup_elem(&verdicts, &key);
}

/* Asks the policies of one end about its peer. Returns 0 or a drop reason. Cost: per flow. */
APART int policy_end(__u32 direction)
{
	struct cpu *c = cpu_this();
	struct peer_class_key key = {};
	struct endpoint_policy *e;
	struct peer_class *class;
	struct policy_ask *ask;
	struct verdict *v;
	__u32 slot, ipv6;

	if (!c)
		return DROP_POLICY_NO_RULE;
	ask = &c->ask;
	direction &= 1;
	ipv6 = !addr_is4(&ask->src);
	slot = direction == POLICY_EGRESS ? ask->src_slot : ask->dst_slot;
	e = bpf_map_lookup_elem(&policies, &slot);
	if (!e)
		return 0;
	key.set = e->set[direction][ipv6];
	if (!key.set)
		return 0;
	key.identity = policy_identity(direction == POLICY_EGRESS ? &ask->dst : &ask->src);
	ask->denied = direction + 1;
	if (key.identity == IDENTITY_UNKNOWN)
		return DROP_POLICY_PEER_UNKNOWN;
	class = bpf_map_lookup_elem(&peer_classes, &key);
	v = class ? policy_find(ask, class->class, class->lengths) : policy_find(ask, key.set, e->lengths[direction][ipv6]);
	ask->audit = e->audit;
	if (!v)
		return DROP_POLICY_NO_RULE;
	ask->rule[direction] = v->rule;
	__sync_fetch_and_add(&v->hits, 1);
	v->last = bpf_jiffies64();
	if (v->action == POLICY_ALLOW) {
		ask->denied = 0;
		return 0;
	}
	return v->action == POLICY_DENY ? DROP_POLICY_DENIED : DROP_POLICY_NO_RULE;
}

/* Asks the policies of both ends, as far as they are ours, what the CPU wants to know. Returns 0 or a drop reason. Cost: per flow. */
INLINE int policy_judge(struct policy_ask *ask)
{
	int outcome;

	ask->rule[0] = 0;
	ask->rule[1] = 0;
	ask->audit = false;
	ask->denied = 0;
	outcome = ask->src_slot ? policy_end(POLICY_EGRESS) : 0;
	return outcome || !ask->dst_slot ? outcome : policy_end(POLICY_INGRESS);
}

#endif
