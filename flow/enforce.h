/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Asking policies about a flow: when it begins, and when what they said may have changed. Its row keeps the answer, for both directions. */
#ifndef MYELIN_ENFORCE_H
#define MYELIN_ENFORCE_H

#include "../bpf/inner.h"
#include "../icmp/trim.h"
#include "../policy/policy.h"
#include "connection.h"

/* Makes the CPU's packet, on the CPU's path, what policies are asked about: it begins a flow, or answers one. */
INLINE void policy_context_init(struct cpu *c, bool reply)
{
	struct policy_context *policy = &c->policy;
	const struct packet *pkt = &c->pkt;

	policy->reply = reply;
	policy->proto = pkt->proto;
	policy->src = reply ? pkt->dst : pkt->src;
	policy->dst = reply ? pkt->src : pkt->dst;
	policy->src_slot = reply ? c->path.dst_slot : c->path.src_slot;
	policy->dst_slot = reply ? c->path.src_slot : c->path.dst_slot;
	/* What answers an ICMP message has a type of its own, which no rule needs to name. */
	policy->port = proto_is_icmp(pkt->proto) ? (reply ? l4_icmp_question(pkt->family, pkt->icmp_type) : pkt->icmp_type) : bpf_ntohs(reply ? pkt->sport : pkt->dport);
}

/* What becomes of what a policy denies: 0 if it goes on all the same. */
INLINE int enforce_result(struct __sk_buff *skb, struct cpu *c, int outcome)
{
	if (outcome && c->policy.audit) {
		count(skb, c, FORWARD_AUDIT);
		return 0;
	}
	return outcome && c->policy.cut && config.policy_cut == CUT_LEAVE ? 0 : outcome;
}

/* The same, noted in the row of the flow that policies were asked about. */
INLINE int enforce_flow_result(struct __sk_buff *skb, struct cpu *c, struct flow *f, int outcome)
{
	outcome = enforce_result(skb, c, outcome);
	flow_set_verdict(c, f);
	f->flags &= ~FLOW_DENIED;
	if (outcome)
		f->flags |= FLOW_DENIED;
	return outcome;
}

/*
 * An ICMP error passes if it is about a packet that its receiver sent, of a flow that policies let pass since they changed;
 * a pod's error only if the packet was for the pod. No more of the quote goes on than what names the flow. Returns 0 or a
 * drop reason. Slow path.
 */
INLINE int enforce_icmp_error(struct __sk_buff *skb, struct cpu *c)
{
	struct inner *in = &c->inner;
	struct flow *f;
	int outcome;

	if (inner_parse(skb) || !addr_equal(&in->src, &c->pkt.dst) || (c->pkt.hook == HOOK_FROM_POD && !addr_equal(&in->dst, &c->pkt.src)))
		return DROP_ICMP_UNRELATED;
	flow_key_of(&c->key, &in->src, in->sport, &in->dst, in->dport, in->proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || f->flags & FLOW_DENIED || f->policy_epoch != c->path.epoch || flow_expired(f, in->proto)) {
		policy_context_init(c, false);
		c->policy.cut = false;
		outcome = enforce_result(skb, c, policy_lookup(&c->policy));
		if (outcome)
			return outcome;
	}
	return icmp_trim(skb) ? 0 : DROP_REWRITE;
}

/* Whether what policies deny the endpoint is only reported. */
INLINE bool policy_audits(__u16 slot)
{
	__u32 key = slot;
	struct endpoint_policy *e = slot ? bpf_map_lookup_elem(&policies, &key) : NULL;

	return e && e->audit;
}

/*
 * Asks about the CPU's TCP segment, on the CPU's path, which has no row and is no SYN: by the side that opened its connection. Returns 0 or a drop reason.
 * Slow path.
 */
APART int enforce_segment(struct __sk_buff *skb)
{
	enum connection_side side;
	struct cpu *c = cpu_this();
	int outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	side = connection_side(skb, c);
	c->policy.cut = side != SEGMENT_OF_NONE;
	policy_context_init(c, side == SEGMENT_OF_ACCEPTOR || side == SEGMENT_OF_EITHER);
	if (side == SEGMENT_OF_NONE)
		return policy_audits(c->path.src_slot) || policy_audits(c->path.dst_slot) ? 0 : DROP_NO_CONNECTION;
	outcome = policy_lookup(&c->policy);
	if (outcome || side != SEGMENT_OF_EITHER)
		return enforce_result(skb, c, outcome);
	/* The peer's next segment makes the row, unless the sender might have opened the connection itself. */
	policy_context_init(c, false);
	c->policy.cut = false;
	outcome = enforce_result(skb, c, policy_lookup(&c->policy));
	policy_context_init(c, true);
	return outcome ? DROP_NO_CONNECTION : 0;
}

/* The row with the CPU's key, if it is one of a flow that is not over. */
INLINE struct flow *enforce_entry(const struct cpu *c)
{
	struct flow *f = bpf_map_lookup_elem(&flows, &c->key);

	if (likely(!f || !flow_expired(f, c->pkt.proto)))
		return f;
	if (!(f->flags & FLOW_NAT)) /* a translated flow keeps its port */
		bpf_map_delete_elem(&flows, &c->key);
	return NULL;
}

/*
 * Asks about the CPU's packet, on the CPU's path, of the flow whose row, if it is known, has the CPU's key, unless the row has the answer. Returns 0 or a
 * drop reason. Cost: per flow.
 */
APART int enforce_flow(struct __sk_buff *skb, __u32 side, __u32 known)
{
	struct cpu *c = cpu_this();
	struct flow *f = NULL;
	int outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	/* A SYN begins a connection, whatever is between the same ports already: an answer that was let in without a row must not open a way back. */
	if (known && !flow_syn(&c->pkt))
		f = enforce_entry(c);
	c->policy.cut = !!f;
	if (f && f->policy_epoch == c->path.epoch && !(f->flags & FLOW_DENIED)) {
		c->policy.reply = f->origin != side;
		return 0;
	}
	policy_context_init(c, f && f->origin != side);
	outcome = policy_lookup(&c->policy);
	return f ? enforce_flow_result(skb, c, f, outcome) : enforce_result(skb, c, outcome);
}

/* The same, but for a TCP segment that has no row and is no SYN: its connection was there before any policy, or its row is gone. */
INLINE int enforce_any(struct __sk_buff *skb, struct cpu *c, int side, bool known)
{
	if (c->pkt.proto == IPPROTO_TCP && !flow_syn(&c->pkt) && !(known && enforce_entry(c)))
		return enforce_segment(skb);
	return enforce_flow(skb, side, known);
}

/* Asks about the CPU's packet, on the CPU's path, whose side of its row's key this is. Returns 0 or a drop reason. Cost: per flow. */
INLINE int enforce(struct __sk_buff *skb, struct cpu *c, int side)
{
	if (l4_is_icmp_error(&c->pkt))
		return enforce_icmp_error(skb, c);
	return enforce_any(skb, c, side, true);
}

#endif
