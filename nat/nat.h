/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Masquerading: pods reach the world from the node's own address. Nearly all connections have their first candidate as
 * port, so that their entries are found from the pod's side without the index. BPF_NOEXIST decides between two CPUs
 * that claim the same port.
 */
#ifndef MYELIN_NAT_H
#define MYELIN_NAT_H

#include "claim.h"
#include "../flow/enforce.h"

/* Translates an ICMP error that a pod sends to the world. Returns NEXT_FORWARD or a drop reason. Slow path. */
APART enum next nat_out_icmp_error(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct packet *about;
	struct inner *in;
	struct flow *f;
	enum next outcome;
	__u16 port;

	if (!c)
		return DROP_REWRITE;
	in = &c->inner;
	about = &c->about;
	outcome = inner_parse(skb);
	if (outcome)
		return outcome;
	about->src = in->dst;
	about->dst = in->src;
	about->sport = in->dport;
	about->dport = in->sport;
	about->proto = in->proto;
	port = nat_candidate(about, 0);
	if (!nat_at(c, about, port))
		port = nat_indexed(true);
	f = port ? bpf_map_lookup_elem(&flows, &c->key) : NULL;
	if (!f || f->flags & FLOW_DENIED)
		return DROP_ICMP_UNRELATED; /* quotes no packet of a masqueraded flow */
	outcome = policy_enforced(&c->path) ? enforce_icmp_error_about(skb, c, f) : 0;
	if (outcome)
		return outcome;
	if (config.policy && !icmp_trim(skb))
		return DROP_REWRITE;
	in->to = c->snat;
	in->port = bpf_htons(port);
	outcome = inner_write(skb, false);
	if (outcome)
		return outcome;
	return nat_write(skb, &c->pkt, true, &c->snat, c->pkt.sport) ? NEXT_FORWARD : DROP_REWRITE;
}

/*
 * Whether the CPU's packet is a pod's reply in a flow that was opened from the world, as its conntrack entry tells.
 * Counts the packet. Cost: per packet of such a flow.
 */
INLINE bool nat_answers(struct __sk_buff *skb, struct cpu *c)
{
	int side = flow_key_own(c);
	struct flow *f = bpf_map_lookup_elem(&flows, &c->key);

	if (!f || f->flags & FLOW_NAT || f->origin == side || flow_expired(f, c->pkt.proto))
		return false;
	if (!flow_tracked(&c->path)) /* otherwise track_begin counts it */
		flow_count(skb, &c->pkt, f, side);
	return true;
}

/*
 * Restores the conntrack entry of a connection that was opened from the world to the pod's own address, if the pod's
 * kernel has such a connection for the CPU's segment, which then is a reply and no new flow. Returns 1 in that case.
 * Slow path: TCP segments without an entry.
 */
APART int nat_restore(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	struct flow *f;
	int side, at;

	if (!c || c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt))
		return 0;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);
	at = e ? connection_at(skb, e->slot, true) : CONNECTION_UNKNOWN;
	if (at != CONNECTION_ACCEPTED && at != CONNECTION_CLAIMED)
		return 0;
	side = flow_key_own(c);
	f = flow_new(c, side);
	f->origin = !side;
	flow_count(skb, &c->pkt, f, side);
	bpf_map_update_elem(&flows, &c->key, f, BPF_NOEXIST);
	return 1;
}

/*
 * Finds the entry of the CPU's packet, its port and its side: by the first candidate port, or by the index, unless it
 * is a SYN. Returns NULL if there is none. Cost: per packet.
 */
INLINE struct flow *nat_find(struct cpu *c, __u16 *port, int *side)
{
	__u16 indexed;
	struct flow *f;

	*port = nat_candidate(&c->pkt, 0);
	*side = nat_key(c, *port);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (likely(f && nat_owns(f, &c->pkt)))
		return f;
	indexed = flow_syn(&c->pkt) ? 0 : nat_indexed(false);
	if (!indexed)
		return NULL;
	*port = indexed;
	*side = nat_key(c, indexed);
	return bpf_map_lookup_elem(&flows, &c->key);
}

/* Whether the policy lookup has said that the CPU's packet, which a pod has sent, goes to the proxy first. */
INLINE bool nat_proxied(const struct cpu *c)
{
	return config.l7 && c->policy.proxy && c->pkt.hook == HOOK_FROM_POD;
}

/*
 * Translates the source of the CPU's packet, which a pod sends to the world, to c->snat. Returns NEXT_FORWARD,
 * NEXT_CONTINUE if the packet is a reply and leaves untranslated, NEXT_PROXY if its flow passes through the proxy
 * first, or a drop reason. Cost: per packet.
 */
APART enum next nat_out(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct flow *f;
	int side, outcome;
	__u16 port;

	if (!c)
		return DROP_REWRITE;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome)
		return outcome;
	if (l4_is_icmp_error(&c->pkt))
		return nat_out_icmp_error(skb);
	if (!nat_supports(&c->pkt))
		return DROP_UNSUPPORTED_L4;
	if (config.tunnel && c->pkt.proto == IPPROTO_UDP && unlikely(c->pkt.dport == bpf_htons(config.tunnel_port)))
		return DROP_TUNNEL_PORT; /* other nodes would take it for a tunnel packet of this node */
	f = nat_find(c, &port, &side);
	if (unlikely(!f)) {
		if (nat_answers(skb, c))
			return NEXT_CONTINUE;
		if (policy_enforced(&c->path)) {
			outcome = enforce_any(skb, c, side, false);
			if (outcome || nat_proxied(c))
				return outcome ? outcome : NEXT_PROXY;
		}
		if (nat_restore(skb))
			return NEXT_CONTINUE;
		outcome = nat_search(skb);
		if (outcome && outcome != DROP_NAT_NO_PORT)
			return outcome;
		port = outcome ? nat_sweep(skb) : port_search(c)->port;
		if (!port)
			return DROP_NAT_NO_PORT;
		side = nat_key(c, port);
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (!f)
			return DROP_MAP_FULL;
	} else if (policy_enforced(&c->path)) {
		outcome = enforce_any(skb, c, side, true);
		if (outcome || nat_proxied(c))
			return outcome ? outcome : NEXT_PROXY;
	}
	flow_reopen(c, f, side);
	flow_count(skb, &c->pkt, f, side);
	return nat_write(skb, &c->pkt, true, &c->snat, bpf_htons(port)) ? NEXT_FORWARD : nat_refusal(&c->pkt);
}

#endif
