/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Masquerading, inbound: replies, and ICMP errors about translated packets. */
#ifndef MYELIN_NAT_IN_H
#define MYELIN_NAT_IN_H

#include "nat.h"
#include "../l7/l7.h"

/* Whether the endpoint with the pod's address is still the pod that the entry was created for. */
INLINE bool nat_pod_is(const struct flow *f, const struct endpoint *e)
{
	return !f->slot || f->slot == e->slot;
}

/*
 * Translates an ICMP error about a packet that a pod sent to the world. Returns NEXT_FORWARD, a drop reason, or
 * NEXT_CONTINUE if the error is about no masqueraded flow. Slow path.
 */
APART enum next nat_in_icmp_error(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct inner *in;
	struct endpoint *e;
	struct flow *f;
	int outcome;

	if (!c)
		return NEXT_CONTINUE;
	in = &c->inner;
	if (inner_parse(skb))
		return NEXT_CONTINUE;
	flow_key_of(&c->key, &in->src, in->sport, &in->dst, in->dport, in->proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || !(f->flags & FLOW_NAT) || flow_expired(f, in->proto))
		return NEXT_CONTINUE;
	if (f->flags & FLOW_DENIED)
		return DROP_ICMP_UNRELATED;
	in->to = f->pod;
	in->port = f->pod_port;
	e = bpf_map_lookup_elem(&endpoints, &in->to);
	if (!e || !nat_pod_is(f, e))
		return DROP_NO_ENDPOINT;
	if (config.policy && !icmp_trim(skb))
		return DROP_REWRITE;
	decide_pod(&c->path, e);
	c->pkt.slot = e->slot;
	if (config.l7 && f->flags & FLOW_PROXY && (outcome = l7_path(c->pkt.proto)))
		return outcome;
	if (c->path.action != PATH_STACK && c->pkt.ttl <= 1)
		return DROP_TTL;
	outcome = inner_write(skb, true);
	if (outcome)
		return outcome;
	return nat_write(skb, &c->pkt, false, &in->to, c->pkt.dport) ? NEXT_FORWARD : DROP_REWRITE;
}

/*
 * Repeats the policy lookup for the flow with the CPU's key, which a pod has opened, after policies may have changed.
 * Returns NEXT_FORWARD or a drop reason. Cost: once per flow and epoch.
 */
APART enum next nat_enforce(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct flow *f;

	if (!c)
		return DROP_POLICY_NO_RULE;
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f)
		return DROP_POLICY_NO_RULE;
	policy_context_init(c, true);
	c->policy.src = f->pod;
	c->policy.cut = true;
	return enforce_flow_result(skb, c, f, policy_lookup(&c->policy));
}

/*
 * Copies the flow's decision for the pod to c->path; decides again if it is outdated. Returns NEXT_FORWARD or a drop
 * reason.
 */
INLINE enum next nat_path(struct cpu *c, struct flow *f)
{
	struct path *way = &f->way;
	struct endpoint *e;

	c->path = *way;
	if (config.l7 && unlikely(f->flags & FLOW_PROXY)) {
		c->path.flags = 0; /* policies are enforced on what the proxy sends to the pod */
		c->path.dst_slot = f->slot;
		return l7_path(c->pkt.proto);
	}
	if (likely(way->action && way->epoch == epoch_sum(0, way->dst_slot)))
		return NEXT_FORWARD;
	e = bpf_map_lookup_elem(&endpoints, &f->pod);
	if (!e || e->flags & ENDPOINT_HOST || !nat_pod_is(f, e))
		return DROP_NO_ENDPOINT; /* the address may belong to another pod by now */
	__builtin_memset(&c->path, 0, sizeof(c->path));
	decide_pod(&c->path, e);
	c->path.flags = decide_tracking(0, e->slot) & PATH_POLICY;
	c->path.epoch = epoch_sum(0, c->path.dst_slot);
	*way = c->path;
	return NEXT_FORWARD;
}

/* Whether the packet may be for a masqueraded pod, so that ports of the host itself need no lookup. */
INLINE bool nat_is_candidate(const struct packet *pkt)
{
	__u16 port = bpf_ntohs(pkt->dport);

	if (proto_has_ports(pkt->proto))
		return port_may_be(PORT_MASQUERADE, port);
	return nat_supports(pkt) || l4_is_icmp_error(pkt);
}

/*
 * Translates the destination of the CPU's packet, which the world sends to the node's address, to that of the pod, and
 * fills in c->path. Returns NEXT_FORWARD, a drop reason, or NEXT_CONTINUE if the packet is for the host. Cost: per
 * packet.
 */
APART enum next nat_in(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int side, outcome;
	struct flow *f;

	if (!c || !nat_is_candidate(&c->pkt))
		return NEXT_CONTINUE;
	if (l4_is_icmp_error(&c->pkt))
		return nat_in_icmp_error(skb);
	side = flow_key_own(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || !(f->flags & FLOW_NAT) || flow_expired(f, c->pkt.proto))
		return NEXT_CONTINUE;
	outcome = nat_path(c, f);
	if (outcome)
		return outcome;
	c->pkt.slot = c->path.dst_slot;
	if (policy_enforced(&c->path) && (f->policy_epoch != c->path.epoch || f->flags & FLOW_DENIED) &&
	    (outcome = nat_enforce(skb)))
		return outcome;
	if (c->path.action != PATH_STACK && c->pkt.ttl <= 1)
		return DROP_TTL;
	flow_count(skb, &c->pkt, f, side);
	return nat_write(skb, &c->pkt, false, &f->pod, f->pod_port) ? NEXT_FORWARD : nat_refusal(&c->pkt);
}

#endif
