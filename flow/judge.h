/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Asking policies about a flow: when it begins, and when what they said may have changed. Its row keeps the answer, for both directions. */
#ifndef MYELIN_JUDGE_H
#define MYELIN_JUDGE_H

#include "../policy/policy.h"
#include "flow.h"

/* Ports from here on are rather those of clients (ip_local_port_range). */
#define CLIENT_PORTS 32768

/*
 * Whether a packet without a row is an answer. A connection that was there before any policy has no row, and its packets don't say who began it: the
 * ports do, as a rule.
 */
INLINE bool judge_answers(const struct packet *pkt)
{
	return pkt->proto == IPPROTO_TCP && !flow_syn(pkt) && bpf_ntohs(pkt->sport) < CLIENT_PORTS && bpf_ntohs(pkt->dport) >= CLIENT_PORTS;
}

/* Makes the CPU's packet, on the CPU's path, what policies are asked about: it begins a flow, or answers one. */
INLINE void judge_ask(struct cpu *c, bool reply)
{
	struct policy_ask *ask = &c->ask;
	const struct packet *pkt = &c->pkt;

	ask->reply = reply;
	ask->proto = pkt->proto;
	ask->src = reply ? pkt->dst : pkt->src;
	ask->dst = reply ? pkt->src : pkt->dst;
	ask->src_slot = reply ? c->path.dst_slot : c->path.src_slot;
	ask->dst_slot = reply ? c->path.src_slot : c->path.dst_slot;
	/* What answers an ICMP message has a type of its own, which no rule needs to name. */
	ask->port = proto_is_icmp(pkt->proto) ? (reply ? l4_icmp_question(pkt->family, pkt->icmp_type) : pkt->icmp_type) : bpf_ntohs(reply ? pkt->sport : pkt->dport);
}

/* What becomes of what a policy denies: 0 if it goes on all the same. */
INLINE int judge_outcome(struct __sk_buff *skb, struct cpu *c, int outcome)
{
	if (outcome && c->ask.audit) {
		count(skb, c, FORWARD_AUDIT);
		return 0;
	}
	return outcome && c->ask.cut && config.policy_cut == CUT_LEAVE ? 0 : outcome;
}

/* An ICMP error passes if it is about a packet of a flow that passes. Returns 0 or a drop reason. Slow path. */
INLINE int judge_error(struct __sk_buff *skb, struct cpu *c)
{
	struct flow *f;

	if (inner_parse(skb))
		return DROP_TRUNCATED;
	flow_key_of(&c->key, &c->inner.src, c->inner.sport, &c->inner.dst, c->inner.dport, c->inner.proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (f && !(f->flags & FLOW_DENIED))
		return 0;
	judge_ask(c, false);
	c->ask.cut = false;
	return judge_outcome(skb, c, policy_judge(&c->ask));
}

/*
 * Asks about the CPU's packet, on the CPU's path, of the flow whose row, if it is known, has the CPU's key, unless the row has the answer. Returns 0 or a
 * drop reason. Cost: per flow.
 */
APART int judge_flow(struct __sk_buff *skb, __u32 side, __u32 known)
{
	struct cpu *c = cpu_this();
	struct flow *f = NULL;
	int outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	/* Who says SYN begins, whatever is between the same ports already: an answer that was let in without a row must not open a way back. */
	if (known && !flow_syn(&c->pkt))
		f = bpf_map_lookup_elem(&flows, &c->key);
	/* A connection without a row was there before any policy, or its row has gone. */
	c->ask.cut = f || (c->pkt.proto == IPPROTO_TCP && !flow_syn(&c->pkt));
	if (f && f->judged == c->path.epoch && !(f->flags & FLOW_DENIED)) {
		c->ask.reply = f->origin != side;
		return 0;
	}
	judge_ask(c, f ? f->origin != side : judge_answers(&c->pkt));
	outcome = judge_outcome(skb, c, policy_judge(&c->ask));
	if (!f)
		return outcome;
	flow_judged(c, f);
	f->flags &= ~FLOW_DENIED;
	if (outcome)
		f->flags |= FLOW_DENIED;
	return outcome;
}

/* Asks about the CPU's packet, on the CPU's path, whose side of its row's key this is. Returns 0 or a drop reason. Cost: per flow. */
INLINE int judge(struct __sk_buff *skb, struct cpu *c, int side)
{
	if (l4_is_icmp_error(&c->pkt))
		return judge_error(skb, c);
	return judge_flow(skb, side, true);
}

#endif
