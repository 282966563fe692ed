/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Policies for flows of Services. They apply to the client and the backend, whatever address the client used. */
#ifndef MYELIN_SERVICE_ENFORCE_H
#define MYELIN_SERVICE_ENFORCE_H

#include "nat_entry.h"
#include "../flow/enforce.h"

INLINE __u16 endpoint_slot_of(const struct addr *a)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, a);

	return e ? e->slot : 0;
}

/* Whether the CPU's packet, which policies allow, goes to the proxy: NEXT_PROXY or NEXT_FORWARD. */
INLINE enum next service_proxied(const struct cpu *c, const struct nat_entry *t)
{
	bool request = addr_equal(&c->to.dst, &t->backend);

	if (config.l7 && t->flags & NAT_ENTRY_PROXY && request && c->pkt.hook != HOOK_FROM_PROXY)
		return NEXT_PROXY;
	return NEXT_FORWARD; /* replies come from the proxy */
}

/*
 * Enforces policies on the flow with the NAT entry c->nat_key, unless its verdict is current. Returns NEXT_FORWARD,
 * NEXT_PROXY or a drop reason. Cost: per flow.
 */
APART enum next service_enforce(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct policy_context *policy;
	struct nat_entry *t;
	enum next outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (!t)
		return DROP_POLICY_NO_RULE;
	if (t->policy_epoch == c->path.epoch)
		return service_proxied(c, t);
	policy = &c->policy;
	policy->src = c->nat_key.src;
	policy->dst = t->backend;
	policy->src_slot = endpoint_slot_of(&c->nat_key.src);
	policy->dst_slot = endpoint_slot_of(&t->backend);
	policy->port = bpf_ntohs(t->backend_port);
	policy->proto = c->nat_key.proto;
	policy->reply = false;
	/* More than one packet: the flow may be older than the policies. */
	policy->cut = t->policy_epoch || t->packets[SIDE_CLIENT] + t->packets[SIDE_BACKEND] > 1;
	outcome = enforce_result(skb, c, policy_lookup(policy));
	if (!outcome) {
		t->policy_epoch = c->path.epoch;
		if (policy->proxy)
			t->flags |= NAT_ENTRY_PROXY;
		return service_proxied(c, t);
	}
	if (!policy->cut)
		nat_entry_delete(c, &c->nat_key, t); /* denied at connection setup */
	return outcome;
}

#endif
