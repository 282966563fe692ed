/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A row for every flow, where the configuration asks for it: what is not translated is then recorded too, and finds its way by its row. */
#ifndef MYELIN_TRACK_H
#define MYELIN_TRACK_H

#include "../nat/nat_in.h"

/* Makes the CPU's key that of its packet. Returns the side that sends it. */
INLINE int track_key(struct cpu *c)
{
	struct packet *pkt = &c->pkt;

	return flow_key_of(&c->key, &pkt->src, pkt->sport, &pkt->dst, pkt->dport, pkt->proto);
}

/* Begins a flow on the CPU's path, or keeps the path in the flow's row. Returns 0 or a drop reason. Cost: per flow. */
APART int track_begin(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_is_icmp_error(&c->pkt))
		return 0;
	return flow_put(skb, c, track_key(c), &c->path) ? 0 : DROP_MAP_FULL;
}

/* A pod's packet by its flow's row. Returns a verdict, or -1 if there is no row, or one that must be decided again. Cost: per packet. */
INLINE int track_from_pod(struct __sk_buff *skb, struct cpu *c)
{
	int outcome = l4_parse_plain(skb, &c->pkt) ? 0 : l4_parse(skb), side;
	struct path *way;
	struct flow *f;

	if (unlikely(outcome))
		return drop(skb, c, outcome);
	side = track_key(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || f->flags & FLOW_NAT)
		return -1;
	way = &flow_side(f, side)->way;
	if (unlikely(way->action == PATH_NONE || way->action == PATH_RESOLVE || way->in_ifindex != skb->ifindex || !path_valid(way)))
		return -1;
	if (unlikely(!path_mac_right(skb, way)))
		return drop_spoofed(skb, c, way);
	c->pkt.slot = way->src_slot;
	flow_reopen(f, &c->pkt, side);
	flow_account(skb, &c->pkt, f, side);
	return path_follow(skb, c, way, way->action);
}

/* Begins a flow, or decides anew, for what the wire brings to a pod. Returns a verdict, or -1 if it is for no pod. Cost: per flow. */
APART int track_wire_begin(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	int outcome;

	if (!c)
		return -1;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	if (!e || e->flags & ENDPOINT_HOST)
		return -1;
	decide_wire_pod(c, e);
	outcome = track_begin(skb);
	if (outcome)
		return drop(skb, c, outcome);
	return path_follow(skb, c, &c->path, c->path.action);
}

/* The wire's packet by its flow's row. Returns a verdict, or -1 if it is for no pod. Cost: per packet. */
INLINE int track_from_wire(struct __sk_buff *skb, struct cpu *c)
{
	struct path *way;
	struct flow *f;
	int side;

	if (unlikely(!l4_parse_plain(skb, &c->pkt) && l4_parse(skb)))
		return -1;
	side = track_key(c);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f)
		return track_wire_begin(skb);
	if (f->flags & FLOW_NAT)
		return -1;
	way = &flow_side(f, side)->way;
	if (unlikely(way->action == PATH_NONE || way->epoch != epoch_sum(0, way->dst_slot)))
		return track_wire_begin(skb);
	c->pkt.slot = way->dst_slot;
	flow_reopen(f, &c->pkt, side);
	flow_account(skb, &c->pkt, f, side);
	return path_follow(skb, c, way, way->action);
}

/* Records what the host's stack sends to a pod. Cost: per packet. */
APART int track_to_pod(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse(skb) || l4_is_icmp_error(&c->pkt))
		return 0;
	flow_put(skb, c, track_key(c), NULL);
	return 0;
}

#endif
