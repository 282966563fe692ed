/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Addresses by DNS name. The proxy writes the addresses that an endpoint got for names, with the selectors of names
 * (toFQDNs) that match. A selector has the identity of an address that no packet has, in the map peers, so that rules
 * match it as they match other peers.
 */
#ifndef MYELIN_NAMES_H
#define MYELIN_NAMES_H

#include "lookup.h"

/* By endpoint and address. Memory grows with the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 17);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name_key);
	__type(value, struct name);
} names SEC(".maps");

/* The address that stands for a selector: ff00::N. Pods can't send to multicast addresses. */
INLINE void name_selector_addr(struct addr *a, __u32 selector)
{
	a->d[0] = bpf_cpu_to_be64(0xff00000000000000ULL);
	a->w[2] = 0;
	a->w[3] = bpf_htonl(selector);
}

/* Verdicts of rules that select by name. */
enum name_verdict {
	NAME_NO_RULE,
	NAME_PROXY, /* allowed through the proxy */
	NAME_ALLOW,
};

/*
 * Looks up the egress verdict on the peer of the lookup context as one that the selector selects, and records its rule.
 * Cost: per flow to an address with names.
 */
APART int name_verdict(__u32 selector)
{
	struct cpu *c = cpu_this();
	struct peer_class_key key = {};
	struct endpoint_policy *e;
	struct peer_class *class;
	struct verdict *v;
	__u32 *id;

	if (!c)
		return NAME_NO_RULE;
	name_selector_addr(&c->name_peer, selector);
	id = bpf_map_lookup_elem(&peers, &c->name_peer);
	key.set = c->policy.src_slot;
	e = bpf_map_lookup_elem(&policies, &key.set);
	if (!e || !id)
		return NAME_NO_RULE;
	key.set = e->set[POLICY_EGRESS][!addr_is4(&c->policy.src)];
	key.identity = *id;
	class = bpf_map_lookup_elem(&peer_classes, &key);
	v = class ? policy_verdict_find(&c->policy, class) : NULL;
	if (!v || v->action != POLICY_ALLOW)
		return NAME_NO_RULE;
	policy_verdict_count(&c->policy, POLICY_EGRESS, v);
	return v->proxy ? NAME_PROXY : NAME_ALLOW;
}

/*
 * Looks up what the names of the peer's address allow the endpoint: nothing if the address is in the cluster, or any
 * name server could open a path to pods and nodes. A flow that was allowed before keeps its names, for
 * as long as the proxy keeps the entry. Cost: per flow that no other rule allows, of endpoints with rules by name.
 */
INLINE enum name_verdict name_verdicts(struct cpu *c)
{
	const struct policy_context *policy = &c->policy;
	int i, verdict, best = NAME_NO_RULE;
	struct name *n;

	c->name_key.addr = policy->dst;
	c->name_key.slot = policy->src_slot;
	n = bpf_map_lookup_elem(&names, &c->name_key);
	if (!n || (!policy->cut && n->expires < bpf_ktime_get_ns()))
		return NAME_NO_RULE;
	if (!policy_outside(policy_identity(&policy->dst)))
		return NAME_NO_RULE;
	for (i = 0; i < NAME_SELECTORS; i++) {
		if (!n->selector[i])
			break;
		verdict = name_verdict(n->selector[i]);
		if (verdict > best)
			best = verdict;
		if (best == NAME_ALLOW)
			break;
	}
	return best;
}

#endif
