/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A row for every flow, where the configuration asks for it: what is not translated is then recorded too, and finds its way by its row. */
#ifndef MYELIN_TRACK_H
#define MYELIN_TRACK_H

#include "../nat/nat_in.h"

/* Begins a flow on the CPU's path, or keeps the path in the flow's row. Returns 0 or a drop reason. Cost: per flow. */
APART int track_begin(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_is_icmp_error(&c->pkt))
		return 0;
	return flow_put(skb, c, flow_key_own(c), true) ? 0 : DROP_MAP_FULL;
}

/* Sends the CPU's packet the way in its flow's row, and puts that at hand. Cost: some 30 times a second and flow. */
INLINE int track_follow(struct __sk_buff *skb, struct cpu *c, struct flow *f, int side)
{
	struct path *way = &flow_side(f, side)->way;
	struct kept_flow *k = kept_find(&c->pkt);

	flow_reopen(f, &c->pkt, side);
	if (k) {
		kept_settle(k, flow_side(f, side));
		kept_renew(k, &c->pkt, way);
	} else if (!(f->flags & FLOW_CLOSING)) {
		c->path = *way;
		flow_keep(side);
	}
	flow_count(skb, &c->pkt, f, side);
	return path_follow(skb, c, way, way->action);
}

/* Whether a row's way is still the one to go. */
INLINE bool track_holds(const struct __sk_buff *skb, const struct path *way)
{
	return way->action != PATH_NONE && way->action != PATH_RESOLVE && way->in_ifindex == skb->ifindex && path_valid(way);
}

/* A pod's packet by its flow's row. Returns a verdict, or -1 if there is no row, or one that must be decided again. */
APART int track_row_from_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct kept_path *p;
	struct path *way;
	struct flow *f;
	int side;

	if (!c)
		return -1;
	side = flow_key_own(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || f->flags & FLOW_NAT)
		return -1;
	way = &flow_side(f, side)->way;
	if (unlikely(!track_holds(skb, way))) {
		p = path_find(&c->pkt, false);
		if (!p || p->path.flags)
			return -1;
		*way = p->path;
	}
	if (unlikely(!path_mac_right(skb, way)))
		return drop_spoofed(skb, c, way);
	c->pkt.slot = way->src_slot;
	return track_follow(skb, c, f, side);
}

/* A pod's packet by its flow. Returns a verdict, or -1 if it must be decided. Cost: per packet. */
INLINE int track_from_pod(struct __sk_buff *skb, struct cpu *c)
{
	int outcome = l4_parse_plain(skb, &c->pkt) ? 0 : l4_parse(skb);
	struct kept_flow *k;

	if (unlikely(outcome))
		return drop(skb, c, outcome);
	if (flow_syn(&c->pkt))
		return -1;
	k = kept_find(&c->pkt);
	if (unlikely(!k || !kept_holds(k)))
		return track_row_from_pod(skb);
	if (unlikely(!path_mac_right(skb, &k->way)))
		return drop_spoofed(skb, c, &k->way);
	c->pkt.slot = k->way.src_slot;
	flow_account(skb, c, k);
	return path_follow(skb, c, &k->way, k->way.action);
}

/* What the wire brings to a pod, by its flow's row, which is begun or decided anew where it must. Returns a verdict, or -1 if it is for no pod. */
APART int track_row_from_wire(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	struct path *way;
	struct flow *f;
	int side;

	if (!c)
		return -1;
	side = flow_key_own(c);
	f = flow_syn(&c->pkt) ? NULL : bpf_map_lookup_elem(&flows, &c->key);
	if (f && f->flags & FLOW_NAT)
		return -1;
	if (f) {
		way = &flow_side(f, side)->way;
		if (likely(way->action != PATH_NONE && way->epoch == epoch_sum(0, way->dst_slot))) {
			c->pkt.slot = way->dst_slot;
			return track_follow(skb, c, f, side);
		}
	}
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	if (!e || e->flags & ENDPOINT_HOST)
		return -1;
	decide_wire_pod(c, e);
	if (!f && c->path.flags)
		return -1; /* it may be a Service's */
	if (f && !l4_is_icmp_error(&c->pkt)) {
		flow_side(f, side)->way = c->path;
		return track_follow(skb, c, f, side);
	}
	side = track_begin(skb);
	if (side)
		return drop(skb, c, side);
	return path_follow(skb, c, &c->path, c->path.action);
}

/* The wire's packet by its flow. Returns a verdict, or -1 if it is for no pod. Cost: per packet. */
INLINE int track_from_wire(struct __sk_buff *skb, struct cpu *c)
{
	struct kept_flow *k;

	if (unlikely(!l4_parse_plain(skb, &c->pkt) && l4_parse(skb)))
		return -1;
	k = flow_syn(&c->pkt) ? NULL : kept_find(&c->pkt);
	if (unlikely(!k || !kept_holds(k)))
		return track_row_from_wire(skb);
	c->pkt.slot = k->way.dst_slot;
	flow_account(skb, c, k);
	return path_follow(skb, c, &k->way, k->way.action);
}

/* Records what the host's stack sends to a pod. Cost: per packet. */
APART int track_to_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse(skb) || l4_is_icmp_error(&c->pkt))
		return 0;
	flow_put(skb, c, flow_key_own(c), false);
	return 0;
}

#endif
