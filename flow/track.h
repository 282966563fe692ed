/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Conntrack entries for all flows, where the configuration or a policy requires them: flows that are not translated are
 * tracked too, and their packets use the per-CPU flow cache.
 */
#ifndef MYELIN_TRACK_H
#define MYELIN_TRACK_H

#include "enforce.h"
#include "../bpf/icmp/reset.h"
#include "../l7/l7.h"
#include "../route/decide.h"

/*
 * Makes c->path the path to the proxy if the policy lookup has said that the CPU's packet goes there. Returns
 * NEXT_FORWARD or a drop reason. Cost: per flow.
 */
INLINE enum next track_redirect(struct __sk_buff *skb, struct cpu *c)
{
	enum next outcome;

	if (!config.l7 || !c->policy.proxy)
		return NEXT_FORWARD;
	outcome = l7_path(c->pkt.proto);
	if (!outcome || !config.l7_open || c->policy.cut)
		return outcome;
	c->policy.proxy = false; /* a new flow passes without the proxy */
	return NEXT_FORWARD;
}

/*
 * Sets up a flow on c->path, or updates its entry if it has one. c->path becomes the path to the proxy if the flow
 * passes through it. Returns NEXT_FORWARD or a drop reason. Cost: per flow.
 */
APART enum next track_begin(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome, side;

	if (!c)
		return DROP_MAP_FULL;
	side = flow_key_own(c);
	if (policy_enforced(&c->path) && (outcome = enforce(skb, c, side) ?: track_redirect(skb, c)))
		return outcome;
	if (l4_is_icmp_error(&c->pkt))
		return NEXT_FORWARD;
	outcome = flow_put(skb, c, side, true);
	/* Without policies, a flow does not need the entry to pass. */
	return outcome == DROP_FLOW_LIMIT && !policy_enforced(&c->path) ? NEXT_FORWARD : outcome;
}

/*
 * Flushes the copy to the entry of the CPU's packet, and extends the copy's validity unless the flow has ended. Returns
 * false if there is no entry.
 */
INLINE bool track_renew(struct cpu *c, struct cached_flow *k)
{
	struct flow *f;

	flow_key_own(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f)
		return false;
	flow_flush(k, f);
	if (!k->closed)
		cached_flow_renew(k);
	return true;
}

/*
 * Makes the copy's decision for one direction that of the forwarding cache. The last packet of a closed flow needs no
 * lookup if the one it has is still valid. Returns false if there is none that the flow can take.
 */
INLINE bool track_decision(const struct cpu *c, struct cached_flow *k, struct cached_direction *w, bool any)
{
	struct cached_path *p;

	if (k->closed && w->path.in_ifindex == c->pkt.ifindex && path_is_valid(&w->path))
		return true;
	p = path_find(&c->pkt, any);
	if (!p || !cached_flow_takes(k, &p->path))
		return false;
	cached_direction_set(w, c->pkt.ifindex, &p->path);
	return true;
}

/*
 * Forwards a packet of a cached flow whose cached decision does not apply to it: the first reply, the first packet in
 * some 30 ms, or an RST. Uses the forwarding cache, and flushes the copy if it has expired. Returns a verdict, or
 * TC_ACT_UNSPEC if the packet must take the new-flow path. Cost: some 60 times a second per flow.
 */
APART int track_resume(struct __sk_buff *skb, __u32 any)
{
	struct cpu *c = cpu_this();
	struct cached_direction *w;
	struct cached_flow *k;
	int direction;

	k = c ? flow_cache_find(&c->pkt, &direction) : NULL;
	if (!k || k->proxied)
		return TC_ACT_UNSPEC;
	w = cached_direction(k, direction);
	if (!track_decision(c, k, w, any))
		return TC_ACT_UNSPEC;
	if (c->pkt.hook == HOOK_FROM_WIRE && unlikely(!path_tunnel_matches(skb, c, &w->path)))
		return TC_ACT_UNSPEC;
	if (c->pkt.hook == HOOK_FROM_POD && unlikely(!path_mac_matches(skb, &w->path)))
		return drop_spoofed(skb, c, &w->path);
	if (k->closed)
		cached_direction_count(skb, &c->pkt, w); /* before the flush: none may follow */
	if (!cached_flow_valid(k) && !track_renew(c, k))
		return TC_ACT_UNSPEC;
	if (!k->closed)
		cached_direction_count(skb, &c->pkt, w);
	w->path.in_ifindex = c->pkt.ifindex; /* cleared by track_renew */
	c->pkt.slot = c->pkt.hook == HOOK_FROM_POD ? w->path.src_slot : w->path.dst_slot;
	cached_flow_end(skb, k);
	return path_follow(skb, c, &w->path, w->path.action, c->pkt.hook);
}

/*
 * Forwards a packet from a pod by its cached flow. Returns a verdict, or TC_ACT_UNSPEC if the flow is not cached, or
 * begins with the packet. Cost: per packet.
 */
INLINE int track_from_pod(struct __sk_buff *skb, struct cpu *c)
{
	struct cached_flow *k;
	struct cached_direction *w;
	int direction;

	if (!l4_parse_plain(skb, &c->pkt) && (direction = l4_parse(skb, &c->pkt)))
		return drop(skb, c, direction);
	k = flow_syn(&c->pkt) ? NULL : flow_cache_find(&c->pkt, &direction);
	if (unlikely(!k))
		return TC_ACT_UNSPEC;
	w = cached_direction(k, direction);
	if (unlikely(!cached_direction_usable(&c->pkt, k, w)))
		return track_resume(skb, false);
	if (unlikely(!path_mac_matches(skb, &w->path)))
		return drop_spoofed(skb, c, &w->path);
	c->pkt.slot = w->path.src_slot;
	flow_cache_count(skb, c, k, w);
	return path_follow(skb, c, &w->path, w->path.action, HOOK_FROM_POD);
}

/*
 * Forwards a packet from a wire by its cached flow. Returns a verdict, or TC_ACT_UNSPEC if the flow is not cached or
 * the packet is not for a pod. Cost: per packet.
 */
INLINE int track_from_wire(struct __sk_buff *skb, struct cpu *c, bool any)
{
	struct cached_flow *k;
	struct cached_direction *w;
	int direction;

	if (unlikely(!l4_parse_plain(skb, &c->pkt) && l4_parse(skb, &c->pkt)))
		return TC_ACT_UNSPEC;
	k = flow_syn(&c->pkt) ? NULL : flow_cache_find(&c->pkt, &direction);
	if (unlikely(!k))
		return TC_ACT_UNSPEC;
	w = cached_direction(k, direction);
	if (unlikely(!cached_direction_usable(&c->pkt, k, w) || !path_tunnel_matches(skb, c, &w->path)))
		return track_resume(skb, any);
	c->pkt.slot = w->path.dst_slot;
	flow_cache_count(skb, c, k, w);
	return path_follow(skb, c, &w->path, w->path.action, HOOK_FROM_WIRE);
}

#define ICMPV6_MLD_QUERY 130
#define ICMPV6_MLD_DONE 132
#define ICMPV6_MLD2_REPORT 143

/*
 * Whether the packet passes regardless of policies, because the link needs it and no router forwards it (RFC 4890 4.4):
 * neighbour discovery, which is ARP's counterpart, and multicast group management.
 */
INLINE bool host_link_local(const struct packet *pkt)
{
	__u8 type = pkt->icmp_type;

	if (pkt->proto == IPPROTO_IGMP)
		return pkt->ttl == 1;
	if (pkt->proto != IPPROTO_ICMPV6)
		return false;
	if (type >= ICMPV6_ROUTER_SOLICITATION && type <= ICMPV6_REDIRECT)
		return pkt->ttl == 255;
	return pkt->ttl == 1 && ((type >= ICMPV6_MLD_QUERY && type <= ICMPV6_MLD_DONE) || type == ICMPV6_MLD2_REPORT);
}

/*
 * Enforces policies on what the host's stack sends to a pod. Sets c->path.flags, which say whether the flow is tracked.
 * Returns NEXT_FORWARD, a drop reason, or NEXT_NEW_FLOW if the packet passes, but must not create an entry. Cost: per
 * packet.
 */
APART enum next enforce_to_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	enum next outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	c->path.flags = 0;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	if (!e || e->flags & ENDPOINT_HOST)
		return NEXT_FORWARD;
	decide_wire_pod(c, e);
	e = config.host_policy ? bpf_map_lookup_elem(&endpoints, &c->pkt.src) : NULL;
	if (e && policy_selects(e->slot)) {
		c->path.src_slot = e->slot;
		c->path.flags |= PATH_TRACKED | PATH_POLICY;
		c->path.epoch = epoch_sum(e->slot, c->path.dst_slot);
	}
	if (!policy_enforced(&c->path))
		return NEXT_FORWARD;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome == NEXT_FORWARD && e && host_link_local(&c->pkt))
		return NEXT_NEW_FLOW;
	if (outcome || !(outcome = enforce(skb, c, flow_key_own(c))))
		return outcome;
	/* An RST tells the pod that its connection is denied now. An entry would allow what follows. */
	return c->pkt.tcp_flags & TCP_RST && c->policy.cut ? NEXT_NEW_FLOW : outcome;
}

/*
 * Forwards the CPU's packet to the proxy if the conntrack entry of its flow says so. Returns a verdict, or
 * TC_ACT_UNSPEC if it belongs to no such flow, or begins one. Cost: per packet of endpoints with L7 rules that is in no
 * flow cache.
 */
APART int track_proxied(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct flow *f;
	int outcome;

	if (!c || l4_parse(skb, &c->pkt) || l4_is_icmp_error(&c->pkt) || flow_syn(&c->pkt))
		return TC_ACT_UNSPEC;
	flow_key_own(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || (f->flags & (FLOW_PROXY | FLOW_NAT)) != FLOW_PROXY || flow_expired(f, c->pkt.proto))
		return TC_ACT_UNSPEC;
	outcome = track_begin(skb);
	if (outcome)
		return refuse_flow(skb, c, outcome);
	return path_follow(skb, c, &c->path, c->path.action, c->pkt.hook);
}

/* Whether what the host's stack sends to a pod is tracked, by the result of Services and of enforce_to_pod. */
INLINE bool to_pod_tracked(const struct cpu *c, int outcome)
{
	if (config.flow_always)
		return outcome != NEXT_NEW_FLOW;
	return config.policy && outcome == NEXT_FORWARD && flow_tracked(&c->path);
}

/* Tracks what the host's stack sends to a pod. Cost: per packet. */
APART int track_to_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse(skb, &c->pkt) || l4_is_icmp_error(&c->pkt))
		return 0;
	flow_put(skb, c, flow_key_own(c), false);
	return 0;
}

#endif
