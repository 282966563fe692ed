/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows at hand: each CPU keeps a copy of the flows whose packets it sees, both ways, and what it has not added to their rows yet. A packet of such a
 * flow looks no row up, but for some 30 a second: a connection that comes and goes meanwhile looks its row up twice, when it begins and when it is over.
 * Losing a copy costs a look-up.
 */
#ifndef MYELIN_FLOW_CACHE_H
#define MYELIN_FLOW_CACHE_H

#include "../route/path.h"

#define FLOW_CACHE_BITS 10


/* One direction: its way, and what is not in the row yet. */
struct cached_direction {
	struct path path; /* PATH_NONE: not known */
	__u64 bytes;
	__u32 packets;
	__u8 tcp_flags; /* all that are known of */
	__u8 pad[3];
};

struct cached_flow {
	struct addr addr[2]; /* who sends in direction 0, and in direction 1 */
	__be16 port[4];      /* source and destination in direction 0, and the other way round */
	__u32 valid_until;      /* clock tick: the first packet from then on goes to the row */
	__u32 policy_epoch;        /* the epoch in which policies let it pass */
	__u8 proto;
	__u8 side;           /* of the row's key: that of packets in direction 0 */
	__u8 closed;          /* true: both ends have said FIN, or one RST */
	__u8 pad[5];
	struct cached_direction way[2]; /* by direction */
};

/* Sets of two, as paths are. One row if no flow has one. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << FLOW_CACHE_BITS);
	__type(key, __u32);
	__type(value, struct cached_flow);
} flow_cache SEC(".maps");

/* The same for both directions: what makes a difference between them cancels out. */
INLINE __u32 flow_cache_index(const struct packet *pkt)
{
	__u64 h = (pkt->src.d[0] + pkt->src.d[1] + pkt->dst.d[0] + pkt->dst.d[1]) * 0x9e3779b97f4a7c15ULL;

	h += ((__u32)pkt->sport + pkt->dport) * 0x94d049bb133111ebULL;
	return h >> (64 - FLOW_CACHE_BITS);
}

/* Two ports in one word, which the compiler must not take for another thing than the two. */
typedef __u32 __attribute__((may_alias)) both_ports;

INLINE __u32 cached_ports(const __be16 *port)
{
	return *(const both_ports *)port;
}

INLINE bool cached_flow_matches(const struct packet *pkt, const struct cached_flow *k, int direction)
{
	return cached_ports(&k->port[2 * direction]) == cached_ports(&pkt->sport) && addr_equal(&k->addr[direction], &pkt->src) && addr_equal(&k->addr[!direction], &pkt->dst);
}

enum cached_direction_index {
	DIRECTION_FIRST,  /* of the packet that made the copy */
	DIRECTION_SECOND, /* the other one */
	DIRECTION_NONE,   /* the packet is another flow's */
};

/* The direction of the packet in the cached flow. */
INLINE enum cached_direction_index cached_flow_direction(const struct packet *pkt, const struct cached_flow *k)
{
	if (unlikely(k->proto != pkt->proto))
		return DIRECTION_NONE;
	if (cached_flow_matches(pkt, k, DIRECTION_FIRST))
		return DIRECTION_FIRST;
	return cached_flow_matches(pkt, k, DIRECTION_SECOND) ? DIRECTION_SECOND : DIRECTION_NONE;
}

/* No copy is good for so many ticks: one that is ages old doesn't become good again when the clock has gone round. */
#define FLOW_CACHE_TICKS_MAX 0x10000

/* For how long a copy is good: some 30 ms, so that those of short flows soon make room. */
INLINE __u32 flow_cache_ticks(void)
{
	return config.hz / 32 + 1;
}

INLINE bool cached_flow_valid(const struct cached_flow *k)
{
	return k->valid_until - clock_now() - 1 < FLOW_CACHE_TICKS_MAX;
}

/* The copy of the packet's flow, live or not, and the direction; NULL if there is none. Cost: per packet, where flows have rows. */
INLINE struct cached_flow *flow_cache_find(const struct packet *pkt, int *direction)
{
	__u32 i = flow_cache_index(pkt);
	struct cached_flow *k = bpf_map_lookup_elem(&flow_cache, &i);

	if (likely(k && (*direction = cached_flow_direction(pkt, k)) != DIRECTION_NONE))
		return k;
	i ^= 1;
	k = bpf_map_lookup_elem(&flow_cache, &i);
	return k && (*direction = cached_flow_direction(pkt, k)) != DIRECTION_NONE ? k : NULL;
}

/* The compiler knows that a direction is 0 or 1 and leaves the mask out; the verifier, which doesn't, wants to see it. */
INLINE struct cached_direction *cached_direction(struct cached_flow *k, __u32 direction)
{
	barrier_var(direction);
	return &k->way[direction & 1];
}

/* Whether the packet may go the copy's way, and is none that begins something or breaks it off. Cost: per packet. */
INLINE bool cached_direction_usable(const struct packet *pkt, const struct cached_flow *k, struct cached_direction *w)
{
	return !(pkt->tcp_flags & (TCP_SYN | TCP_RST)) && w->path.in_ifindex == pkt->ifindex && cached_flow_valid(k) && path_is_current(&w->path);
}

/* Adds a packet. Cost: per packet. */
INLINE void cached_direction_count(const struct __sk_buff *skb, const struct packet *pkt, struct cached_direction *w)
{
	w->packets++;
	w->bytes += skb->len;
	w->tcp_flags |= pkt->tcp_flags;
}

/* The row has been told. */
INLINE void cached_direction_clear(struct cached_direction *w)
{
	w->packets = 0;
	w->bytes = 0;
}

/* The packet may go on by this path for as long as the copy is good. */
INLINE void cached_direction_set(struct cached_direction *w, const struct packet *pkt, const struct path *path)
{
	w->path = *path;
	w->path.in_ifindex = pkt->ifindex;
	w->path.generation = epoch_generation() - 1;
}

/* The row has been told of all packets: the copy is good for another while. Ways are looked up anew. */
INLINE void cached_flow_renew(struct cached_flow *k)
{
	k->way[0].path.in_ifindex = 0;
	k->way[1].path.in_ifindex = 0;
	k->valid_until = clock_now() + flow_cache_ticks();
}

/* Makes it the copy of the packet's flow, which has been told of all packets. */
INLINE void cached_flow_fill(struct cached_flow *k, const struct packet *pkt, __u32 side, __u32 judged)
{
	k->addr[0] = pkt->src;
	k->addr[1] = pkt->dst;
	k->port[0] = k->port[3] = pkt->sport;
	k->port[1] = k->port[2] = pkt->dport;
	k->proto = pkt->proto;
	k->side = side;
	k->closed = false;
	k->policy_epoch = judged;
	cached_direction_clear(&k->way[0]);
	cached_direction_clear(&k->way[1]);
	k->way[0].tcp_flags = 0;
	k->way[1].tcp_flags = 0;
	cached_flow_renew(k);
}

/* Whether another flow may have the place: 0 is no time, since for some minutes after the start it is in the near future. */
INLINE bool cached_flow_reusable(const struct cached_flow *k)
{
	return !k->valid_until || !cached_flow_valid(k);
}

/* The place for a copy: the flow's own, or one that is free; NULL if both of its set are in use. */
INLINE struct cached_flow *flow_cache_slot(const struct packet *pkt)
{
	__u32 i = flow_cache_index(pkt);
	struct cached_flow *first = bpf_map_lookup_elem(&flow_cache, &i), *second;

	i ^= 1;
	second = bpf_map_lookup_elem(&flow_cache, &i);
	if (!first || !second)
		return NULL;
	if (cached_flow_direction(pkt, first) != DIRECTION_NONE)
		return first;
	if (cached_flow_direction(pkt, second) != DIRECTION_NONE || !cached_flow_reusable(first))
		return cached_flow_direction(pkt, second) != DIRECTION_NONE || cached_flow_reusable(second) ? second : NULL;
	return first;
}

#endif
