/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Policy lookups for flows: at connection setup, and when policies have changed since. The conntrack entry keeps the
 * verdict, which holds for both directions.
 */
#ifndef MYELIN_ENFORCE_H
#define MYELIN_ENFORCE_H

#include "../bpf/inner.h"
#include "../bpf/icmp/trim.h"
#include "../policy/policy.h"
#include "connection.h"

/* Fills in the lookup context for the CPU's packet on c->path: the first packet of a flow, or a reply. */
INLINE void policy_context_init(struct cpu *c, bool reply)
{
	struct policy_context *policy = &c->policy;
	const struct packet *pkt = &c->pkt;

	policy->reply = reply;
	policy->proxy = false;
	policy->proto = pkt->proto;
	policy->src = reply ? pkt->dst : pkt->src;
	policy->dst = reply ? pkt->src : pkt->dst;
	policy->src_slot = reply ? c->path.dst_slot : c->path.src_slot;
	policy->dst_slot = reply ? c->path.src_slot : c->path.dst_slot;
	/* An ICMP reply is looked up by the type of its request, so that rules need not name the reply's type. */
	policy->port = proto_is_icmp(pkt->proto)
			? (reply ? l4_icmp_question(pkt->family, pkt->icmp_type) : pkt->icmp_type)
			: bpf_ntohs(reply ? pkt->sport : pkt->dport);
}

/*
 * Returns the drop reason of a policy lookup, or 0 if the packet passes although it is denied: in audit mode, and if
 * the flow was allowed before and policy_cut is CUT_LEAVE.
 */
INLINE enum next enforce_result(struct __sk_buff *skb, struct cpu *c, int outcome)
{
	if (outcome && c->policy.audit) {
		count(skb, c, FORWARD_AUDIT);
		event_audit(skb);
		return NEXT_FORWARD;
	}
	return outcome && c->policy.cut && config.policy_cut == CUT_LEAVE ? NEXT_FORWARD : outcome;
}

/* Does the same as enforce_result, and records the verdict in the flow's conntrack entry. */
INLINE enum next enforce_flow_result(struct __sk_buff *skb, struct cpu *c, struct flow *f, int outcome)
{
	outcome = enforce_result(skb, c, outcome);
	flow_set_verdict(c, f);
	f->flags &= ~FLOW_DENIED;
	if (outcome)
		f->flags |= FLOW_DENIED;
	c->policy.proxy = !!(f->flags & FLOW_PROXY);
	return outcome;
}

/*
 * Enforces policies on an ICMP error about a flow: it passes if the flow was allowed since policies changed last,
 * otherwise a policy lookup for the error itself decides. f is the flow's entry or NULL. Returns NEXT_FORWARD or a drop
 * reason.
 */
INLINE enum next enforce_icmp_error_about(struct __sk_buff *skb, struct cpu *c, const struct flow *f)
{
	enum next outcome = NEXT_FORWARD;

	if (!f || f->flags & FLOW_DENIED || f->policy_epoch != c->path.epoch || flow_expired(f, c->inner.proto)) {
		policy_context_init(c, false);
		c->policy.cut = false;
		outcome = enforce_result(skb, c, policy_lookup(&c->policy));
	}
	return outcome;
}

/*
 * Enforces policies on an ICMP error. It must quote a packet that its receiver sent; an error from a pod must quote a
 * packet to that pod. The quote is trimmed to what identifies the flow. Returns NEXT_FORWARD or a drop reason. Slow
 * path.
 */
INLINE enum next enforce_icmp_error(struct __sk_buff *skb, struct cpu *c)
{
	struct inner *in = &c->inner;
	struct flow *f;
	enum next outcome;

	if (inner_parse(skb) || !addr_equal(&in->src, &c->pkt.dst) ||
	    (c->pkt.hook == HOOK_FROM_POD && !addr_equal(&in->dst, &c->pkt.src)))
		return DROP_ICMP_UNRELATED;
	flow_key_of(&c->key, &in->src, in->sport, &in->dst, in->dport, in->proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	outcome = enforce_icmp_error_about(skb, c, f);
	if (outcome)
		return outcome;
	c->policy.proxy = f && f->flags & FLOW_PROXY;
	return icmp_trim(skb) ? NEXT_FORWARD : DROP_REWRITE;
}

/* Whether the endpoint has policies that are not only audited. */
INLINE bool policy_enforces(__u16 slot)
{
	__u32 key = slot;
	struct endpoint_policy *e = slot ? bpf_map_lookup_elem(&policies, &key) : NULL;

	return e && !e->audit;
}

/*
 * Returns the result for a TCP segment on c->path that belongs to no connection: a drop reason, or 0 if each end with
 * policies only audits them. Slow path.
 */
INLINE enum next enforce_no_connection(struct __sk_buff *skb, struct cpu *c)
{
	c->policy.rule[0] = c->policy.rule[1] = 0;
	c->policy.denied = (policy_selects(c->path.dst_slot) ? POLICY_INGRESS : POLICY_EGRESS) + 1;
	c->policy.audit = !policy_enforces(c->path.src_slot) && !policy_enforces(c->path.dst_slot);
	return enforce_result(skb, c, DROP_NO_CONNECTION);
}

/*
 * Enforces policies on the CPU's TCP segment on c->path, which has no conntrack entry and is no SYN: looks the
 * connection up from the side that opened it. Returns NEXT_FORWARD or a drop reason. Slow path.
 */
APART enum next enforce_segment(struct __sk_buff *skb)
{
	enum connection_side side;
	struct cpu *c = cpu_this();
	enum next outcome;
	bool proxy;

	if (!c)
		return DROP_POLICY_NO_RULE;
	side = connection_side(skb, c);
	c->policy.cut = side != SEGMENT_OF_NONE;
	policy_context_init(c, side == SEGMENT_OF_ACCEPTOR || side == SEGMENT_OF_EITHER);
	if (side == SEGMENT_OF_NONE)
		return enforce_no_connection(skb, c);
	outcome = policy_lookup(&c->policy);
	if (outcome || side != SEGMENT_OF_EITHER)
		return enforce_result(skb, c, outcome);
	/* The sender may be the opener. Unless policies allow that, only the peer's next segment creates the entry. */
	policy_context_init(c, false);
	c->policy.cut = false;
	outcome = enforce_result(skb, c, policy_lookup(&c->policy));
	proxy = c->policy.proxy;
	policy_context_init(c, true);
	c->policy.proxy = proxy;
	return outcome ? DROP_NO_CONNECTION : NEXT_FORWARD;
}

/* Finds the conntrack entry with the CPU's key. Returns NULL if there is none, or if it has expired. */
INLINE struct flow *enforce_entry(const struct cpu *c)
{
	struct flow *f = bpf_map_lookup_elem(&flows, &c->key);

	if (likely(!f || !flow_expired(f, c->pkt.proto)))
		return f;
	if (!(f->flags & FLOW_NAT)) /* a masqueraded flow keeps its port */
		bpf_map_delete_elem(&flows, &c->key);
	return NULL;
}

/*
 * Enforces policies on the CPU's packet on c->path. With known set, the flow's conntrack entry, if any, has the CPU's
 * key; a policy lookup is needed only if its verdict is outdated. Returns NEXT_FORWARD or a drop reason. Cost: per
 * flow.
 */
APART enum next enforce_flow(struct __sk_buff *skb, __u32 side, __u32 known)
{
	struct cpu *c = cpu_this();
	struct flow *f = NULL;
	enum next outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	/*
	 * A SYN opens a new connection, even if an entry has its tuple: a reply that was accepted without an entry must
	 * not permit connections in the opposite direction.
	 */
	if (known && !flow_syn(&c->pkt))
		f = enforce_entry(c);
	c->policy.cut = !!f;
	if (f && f->policy_epoch == c->path.epoch && !(f->flags & FLOW_DENIED)) {
		c->policy.reply = f->origin != side;
		c->policy.proxy = !!(f->flags & FLOW_PROXY);
		return NEXT_FORWARD;
	}
	policy_context_init(c, f && f->origin != side);
	outcome = policy_lookup(&c->policy);
	return f ? enforce_flow_result(skb, c, f, outcome) : enforce_result(skb, c, outcome);
}

/*
 * Does the same as enforce_flow, except for a TCP segment that has no entry and is no SYN: its connection is older than
 * the policies, or its entry was removed. Cost: per flow.
 */
INLINE enum next enforce_any(struct __sk_buff *skb, struct cpu *c, int side, bool known)
{
	if (c->pkt.proto == IPPROTO_TCP && !flow_syn(&c->pkt) && !(known && enforce_entry(c)))
		return enforce_segment(skb);
	return enforce_flow(skb, side, known);
}

/*
 * Enforces policies on the CPU's packet on c->path; side is the sender's in the CPU's key. Returns NEXT_FORWARD or a
 * drop reason. Cost: per flow.
 */
INLINE enum next enforce(struct __sk_buff *skb, struct cpu *c, int side)
{
	if (l4_is_icmp_error(&c->pkt))
		return enforce_icmp_error(skb, c);
	return enforce_any(skb, c, side, true);
}

#endif
