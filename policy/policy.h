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

struct peer_prefix_key {
	__u32 length; /* bits, of the mapped address */
	__be32 addr[4];
};

/* Identities of prefixes, where an address has no row of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct peer_prefix_key);
	__type(value, __u32);
} peer_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
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

#endif
