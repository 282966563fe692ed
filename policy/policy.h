/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Policy lookup: at connection setup, and again when the verdict may have changed. */
#ifndef MYELIN_POLICY_H
#define MYELIN_POLICY_H

#include "names.h"

/* What the endpoint's policies have beyond addresses and ports (enum policy_l7). Slow path. */
INLINE __u8 policy_l7(__u16 slot)
{
	__u32 key = slot;
	struct endpoint_policy *e = slot ? bpf_map_lookup_elem(&policies, &key) : NULL;

	return e ? e->l7 : 0;
}

/*
 * Looks up the peer's class for one end, into the CPU's lookup context: class 0 if everything is allowed, or the peer
 * is unknown. Returns NEXT_FORWARD or a drop reason; policy->audit says then whether it is only reported. Cost: once
 * for each pair of ends and generation.
 */
APART enum next policy_class(__u32 direction)
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
		return NEXT_FORWARD;
	key.identity = policy_identity(direction == POLICY_EGRESS ? &policy->dst : &policy->src);
	if (key.identity == IDENTITY_UNKNOWN) {
		policy->denied = direction + 1;
		policy->audit = !!e->audit;
		return DROP_POLICY_PEER_UNKNOWN;
	}
	class = bpf_map_lookup_elem(&peer_classes, &key);
	policy->class[direction].class = class ? class->class : key.set;
	policy->class[direction].lengths = (class ? class->lengths : e->lengths[direction][ipv6]) |
					   (e->audit ? POLICY_AUDIT : 0) | (e->l7 & POLICY_NAMES ? POLICY_BY_NAME : 0);
	return NEXT_FORWARD;
}

/*
 * Looks up the classes of both ends, into the lookup context, and caches them unless an identity is still unknown.
 * Returns NEXT_FORWARD or a drop reason. If that is only reported, the classes of both ends have been looked up
 * nevertheless. Cost: per flow.
 */
INLINE enum next policy_classes(struct policy_context *policy)
{
	__u64 generation = epoch_generation(); /* before the lookups: a later change invalidates the cache entry */
	struct policy_pair *p = policy_pair_at(policy);
	enum next outcome;

	if (likely(p && policy_pair_matches(p, policy) && p->generation == generation)) {
		__builtin_memcpy(policy->class, p->class, sizeof(policy->class));
		return NEXT_FORWARD;
	}
	outcome = policy_class(POLICY_EGRESS);
	if (!outcome || policy->audit)
		outcome = policy_class(POLICY_INGRESS) ?: outcome;
	if (!outcome && p)
		policy_pair_store(p, policy, generation);
	return outcome;
}

/* Whether the flow of the lookup context is DNS: its messages pass through the proxy, which learns names. */
INLINE bool policy_is_dns(const struct policy_context *policy)
{
	return policy->port == 53 && (policy->proto == IPPROTO_UDP || policy->proto == IPPROTO_TCP);
}

#define POLICY_PROXY_EGRESS (1 << POLICY_EGRESS)

/*
 * Completes the verdict on a flow from an endpoint that has rules by name. allowed: another rule allows the flow, if
 * need be through the proxy. Returns whether the flow is allowed. Cost: per flow of such endpoints.
 */
INLINE bool policy_by_name(struct cpu *c, bool allowed)
{
	if (!allowed || c->policy.proxy & POLICY_PROXY_EGRESS) {
		switch (name_verdicts(c)) {
		case NAME_ALLOW:
			c->policy.proxy &= ~POLICY_PROXY_EGRESS;
			allowed = true;
			break;
		case NAME_PROXY:
			c->policy.proxy |= POLICY_PROXY_EGRESS;
			allowed = true;
			break;
		default:
			break;
		}
	}
	if (allowed && policy_is_dns(&c->policy))
		c->policy.proxy |= POLICY_PROXY_EGRESS;
	return allowed;
}

/* Looks up the verdict of one end's class. Returns NEXT_FORWARD or a drop reason. Cost: per flow. */
APART enum next policy_verdict(__u32 direction)
{
	struct cpu *c = cpu_this();
	struct policy_context *policy;
	bool allowed = false, denied = false;
	struct verdict *v;

	if (!c)
		return DROP_POLICY_NO_RULE;
	policy = &c->policy;
	direction &= 1;
	v = policy_verdict_find(policy, &policy->class[direction]);
	if (v) {
		policy_verdict_count(policy, direction, v);
		allowed = v->action == POLICY_ALLOW;
		denied = v->action == POLICY_DENY;
		if (config.l7 && v->proxy)
			policy->proxy |= 1 << direction;
	}
	if (config.l7 && !denied && direction == POLICY_EGRESS &&
	    policy->class[POLICY_EGRESS].lengths & POLICY_BY_NAME)
		allowed = policy_by_name(c, allowed);
	if (allowed)
		return NEXT_FORWARD;
	policy->denied = direction + 1;
	policy->audit = !!(policy->class[direction].lengths & POLICY_AUDIT);
	return denied ? DROP_POLICY_DENIED : DROP_POLICY_NO_RULE;
}

/*
 * Looks up the policies of both ends, if they are endpoints of this node. policy is the CPU's lookup context. Returns 0
 * or a drop reason. If one end denies in audit mode, the other end's policies are still looked up. Cost: per flow.
 */
INLINE enum next policy_lookup(struct policy_context *policy)
{
	enum next outcome;

	policy->rule[0] = 0;
	policy->rule[1] = 0;
	policy->audit = false;
	policy->denied = 0;
	policy->proxy = 0;
	outcome = policy_classes(policy);
	if (outcome && !policy->audit)
		return outcome;
	if (policy->class[POLICY_EGRESS].class)
		outcome = policy_verdict(POLICY_EGRESS) ?: outcome;
	if ((outcome && !policy->audit) || !policy->class[POLICY_INGRESS].class)
		return outcome;
	return policy_verdict(POLICY_INGRESS) ?: outcome;
}

#endif
