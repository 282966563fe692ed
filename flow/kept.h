/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows at hand: each CPU keeps a copy of the flows whose packets it sees, both ways, and what it has not added to their rows yet. A packet of such a
 * flow looks no row up, but for some 30 a second: a connection that comes and goes meanwhile looks its row up twice, when it begins and when it is over.
 * Losing a copy costs a look-up.
 */
#ifndef MYELIN_KEPT_H
#define MYELIN_KEPT_H

#include "../route/path.h"

#define KEPT_BITS 10


/* One direction: its way, and what is not in the row yet. */
struct kept_way {
	struct path path; /* PATH_NONE: not known */
	__u64 bytes;
	__u32 packets;
	__u8 tcp_flags; /* all that are known of */
	__u8 pad[3];
};

struct kept_flow {
	struct addr addr[2]; /* who sends in direction 0, and in direction 1 */
	__be16 port[4];      /* source and destination in direction 0, and the other way round */
	__u32 until;         /* clock tick: the first packet from then on goes to the row */
	__u32 judged;        /* the epoch in which policies let it pass */
	__u8 proto;
	__u8 side;           /* of the row's key: that of packets in direction 0 */
	__u8 over;           /* true: both ends have said FIN, or one RST */
	__u8 pad[5];
	struct kept_way way[2]; /* by direction */
};

/* Sets of two, as paths are. One row if no flow has one. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << KEPT_BITS);
	__type(key, __u32);
	__type(value, struct kept_flow);
} kept_flows SEC(".maps");

/* The same for both directions: what makes a difference between them cancels out. */
INLINE __u32 kept_index(const struct packet *pkt)
{
	__u64 h = (pkt->src.d[0] + pkt->src.d[1] + pkt->dst.d[0] + pkt->dst.d[1]) * 0x9e3779b97f4a7c15ULL;

	h += ((__u32)pkt->sport + pkt->dport) * 0x94d049bb133111ebULL;
	return h >> (64 - KEPT_BITS);
}

/* Two ports in one word, which the compiler must not take for another thing than the two. */
typedef __u32 __attribute__((may_alias)) both_ports;

INLINE __u32 kept_ports(const __be16 *port)
{
	return *(const both_ports *)port;
}

INLINE bool kept_goes(const struct packet *pkt, const struct kept_flow *k, int direction)
{
	return kept_ports(&k->port[2 * direction]) == kept_ports(&pkt->sport) && addr_equal(&k->addr[direction], &pkt->src) && addr_equal(&k->addr[!direction], &pkt->dst);
}

/* The flow's direction that the packet goes, an index of its ways; -1 if it is another flow. */
INLINE int kept_direction(const struct packet *pkt, const struct kept_flow *k)
{
	if (unlikely(k->proto != pkt->proto))
		return -1;
	if (kept_goes(pkt, k, 0))
		return 0;
	return kept_goes(pkt, k, 1) ? 1 : -1;
}

/* No copy is good for so many ticks: one that is ages old doesn't become good again when the clock has gone round. */
#define KEPT_TICKS_MAX 0x10000

/* For how long a copy is good: some 30 ms, so that those of short flows soon make room. */
INLINE __u32 kept_ticks(void)
{
	return config.hz / 32 + 1;
}

INLINE bool kept_live(const struct kept_flow *k)
{
	return k->until - clock_now() - 1 < KEPT_TICKS_MAX;
}

/* The copy of the packet's flow, live or not, and the direction; NULL if there is none. Cost: per packet, where flows have rows. */
INLINE struct kept_flow *kept_find(const struct packet *pkt, int *direction)
{
	__u32 i = kept_index(pkt);
	struct kept_flow *k = bpf_map_lookup_elem(&kept_flows, &i);

	if (likely(k && (*direction = kept_direction(pkt, k)) >= 0))
		return k;
	i ^= 1;
	k = bpf_map_lookup_elem(&kept_flows, &i);
	return k && (*direction = kept_direction(pkt, k)) >= 0 ? k : NULL;
}

/* The compiler knows that a direction is 0 or 1 and leaves the mask out; the verifier, which doesn't, wants to see it. */
INLINE struct kept_way *kept_way(struct kept_flow *k, __u32 direction)
{
	barrier_var(direction);
	return &k->way[direction & 1];
}

/* Whether the packet may go the copy's way, and is none that begins something or breaks it off. Cost: per packet. */
INLINE bool kept_holds(const struct packet *pkt, const struct kept_flow *k, struct kept_way *w)
{
	return !(pkt->tcp_flags & (TCP_SYN | TCP_RST)) && w->path.in_ifindex == pkt->ifindex && kept_live(k) && path_current(&w->path);
}

/* Adds a packet. Cost: per packet. */
INLINE void kept_account(const struct __sk_buff *skb, const struct packet *pkt, struct kept_way *w)
{
	w->packets++;
	w->bytes += skb->len;
	w->tcp_flags |= pkt->tcp_flags;
}

/* The row has been told. */
INLINE void kept_clear(struct kept_way *w)
{
	w->packets = 0;
	w->bytes = 0;
}

/* The packet may go on by this path for as long as the copy is good. */
INLINE void kept_set(struct kept_way *w, const struct packet *pkt, const struct path *path)
{
	w->path = *path;
	w->path.in_ifindex = pkt->ifindex;
	w->path.generation = epoch_generation() - 1;
}

/* The row has been told of all packets: the copy is good for another while. Ways are looked up anew. */
INLINE void kept_renew(struct kept_flow *k)
{
	k->way[0].path.in_ifindex = 0;
	k->way[1].path.in_ifindex = 0;
	k->until = clock_now() + kept_ticks();
}

/* Makes it the copy of the packet's flow, which has been told of all packets. */
INLINE void kept_fill(struct kept_flow *k, const struct packet *pkt, __u32 side, __u32 judged)
{
	k->addr[0] = pkt->src;
	k->addr[1] = pkt->dst;
	k->port[0] = k->port[3] = pkt->sport;
	k->port[1] = k->port[2] = pkt->dport;
	k->proto = pkt->proto;
	k->side = side;
	k->over = false;
	k->judged = judged;
	kept_clear(&k->way[0]);
	kept_clear(&k->way[1]);
	k->way[0].tcp_flags = 0;
	k->way[1].tcp_flags = 0;
	kept_renew(k);
}

/* Whether another flow may have the place: 0 is no time, since for some minutes after the start it is in the near future. */
INLINE bool kept_free(const struct kept_flow *k)
{
	return !k->until || !kept_live(k);
}

/* The place for a copy: the flow's own, or one that is free; NULL if both of its set are in use. */
INLINE struct kept_flow *kept_place(const struct packet *pkt)
{
	__u32 i = kept_index(pkt);
	struct kept_flow *first = bpf_map_lookup_elem(&kept_flows, &i), *second;

	i ^= 1;
	second = bpf_map_lookup_elem(&kept_flows, &i);
	if (!first || !second)
		return NULL;
	if (kept_direction(pkt, first) >= 0)
		return first;
	if (kept_direction(pkt, second) >= 0 || !kept_free(first))
		return kept_direction(pkt, second) >= 0 || kept_free(second) ? second : NULL;
	return first;
}

#endif
