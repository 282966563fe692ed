/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows at hand: each CPU keeps a copy of the ways of the flows whose packets it sees, and what it has not added to their rows yet. A packet of such a
 * flow looks no row up, but for some 30 a second, and for those that begin or end a connection. Losing a copy costs a look-up.
 */
#ifndef MYELIN_KEPT_H
#define MYELIN_KEPT_H

#include "../route/path.h"

#define KEPT_BITS 10

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct kept_flow {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u32 until;   /* clock tick: the first packet from then on goes to the row */
	__u32 packets; /* not in the row yet, as the next two */
	__u8 tcp_flags;
	__u8 side;
	__u8 proto;
	__u8 pad;
	__u64 bytes;
	struct path way;
};

/* Sets of two, as paths are. One row if not every flow has one. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << KEPT_BITS);
	__type(key, __u32);
	__type(value, struct kept_flow);
} kept_flows SEC(".maps");

INLINE __u32 kept_index(const struct packet *pkt)
{
	return (path_hash(pkt, false) + ((__u32)pkt->dport << 16 | pkt->sport) * 0x94d049bb133111ebULL) >> (64 - KEPT_BITS);
}

INLINE bool kept_matches(const struct packet *pkt, const struct kept_flow *k)
{
	return k->way.in_ifindex == pkt->ifindex && k->sport == pkt->sport && k->dport == pkt->dport && k->proto == pkt->proto &&
	       addr_equal(&k->src, &pkt->src) && addr_equal(&k->dst, &pkt->dst);
}

/* For how long a copy is good: some 30 ms, so that those of short flows soon make room. */
INLINE __u32 kept_ticks(void)
{
	return config.hz / 32 + 1;
}

INLINE bool kept_live(const struct kept_flow *k)
{
	return k->until - clock_now() - 1 < kept_ticks();
}

/* The copy of the packet's flow, live or not; NULL if there is none. Cost: per packet, where every flow has a row. */
INLINE struct kept_flow *kept_find(const struct packet *pkt)
{
	__u32 i = kept_index(pkt);
	struct kept_flow *k = bpf_map_lookup_elem(&kept_flows, &i);

	if (likely(k && kept_matches(pkt, k)))
		return k;
	i ^= 1;
	k = bpf_map_lookup_elem(&kept_flows, &i);
	return k && kept_matches(pkt, k) ? k : NULL;
}

/* Whether the packet may go the copy's way. Cost: per packet. */
INLINE bool kept_holds(const struct kept_flow *k)
{
	return kept_live(k) && k->way.epoch == epoch_sum(k->way.src_slot, k->way.dst_slot);
}

INLINE void kept_account(const struct __sk_buff *skb, const struct packet *pkt, struct kept_flow *k)
{
	k->packets++;
	k->bytes += skb->len;
	k->tcp_flags |= pkt->tcp_flags;
}

/* The row has been told. */
INLINE void kept_clear(struct kept_flow *k)
{
	k->packets = 0;
	k->bytes = 0;
	k->tcp_flags = 0;
}

/* Adds to the row's side what was not in it yet. */
INLINE void kept_settle(struct kept_flow *k, struct flow_side *s)
{
	if (!k->packets)
		return;
	__sync_fetch_and_add(&s->packets, k->packets);
	__sync_fetch_and_add(&s->bytes, k->bytes);
	s->tcp_flags |= k->tcp_flags;
	kept_clear(k);
}

/* The row has just been looked up: the copy is good for another while. */
INLINE void kept_renew(struct kept_flow *k, const struct packet *pkt, const struct path *way)
{
	k->way = *way;
	k->way.in_ifindex = pkt->ifindex;
	k->until = clock_now() + kept_ticks();
}

/* Makes it the copy of the packet's flow, which has been told of all packets. */
INLINE void kept_fill(struct kept_flow *k, const struct packet *pkt, const struct path *way, __u32 side)
{
	k->src = pkt->src;
	k->dst = pkt->dst;
	k->sport = pkt->sport;
	k->dport = pkt->dport;
	k->proto = pkt->proto;
	k->side = side;
	kept_clear(k);
	kept_renew(k, pkt, way);
}

/* The place for a copy: the flow's own, or one that is not live; NULL if both of its set are in use. */
INLINE struct kept_flow *kept_place(const struct packet *pkt)
{
	__u32 i = kept_index(pkt);
	struct kept_flow *first = bpf_map_lookup_elem(&kept_flows, &i), *second;

	i ^= 1;
	second = bpf_map_lookup_elem(&kept_flows, &i);
	if (!first || !second)
		return NULL;
	if (kept_matches(pkt, first))
		return first;
	if (kept_matches(pkt, second) || kept_live(first))
		return kept_matches(pkt, second) || !kept_live(second) ? second : NULL;
	return first;
}

#endif
