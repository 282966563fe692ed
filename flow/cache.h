/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Per-CPU flow cache: each CPU keeps copies of the conntrack entries of the flows whose packets it sees, for both
 * directions, with the counters that are not flushed to the entries yet. A packet of a cached flow needs no lookup of
 * its entry, except some 30 times a second. A short connection looks its entry up twice, at connection setup and at its
 * end. A lost copy costs one lookup.
 */
#ifndef MYELIN_FLOW_CACHE_H
#define MYELIN_FLOW_CACHE_H

#include "../route/path.h"

#define FLOW_CACHE_BITS 10

/* One direction: its forwarding decision, and the counters that are not flushed yet. */
struct cached_direction {
	struct path path; /* PATH_NONE: not known */
	__u64 bytes;
	__u32 packets;
	__u8 tcp_flags; /* all that were seen */
	__u8 pad[3];
};

struct cached_flow {
	struct addr addr[2]; /* the sources of direction 0 and direction 1 */
	__be16 port[4];      /* source and destination of direction 0, then of direction 1 */
	__u32 valid_until;   /* clock tick: the first packet from then on flushes the counters; 0: the slot is empty */
	__u32 policy_epoch;  /* the epoch in which policies allowed the flow */
	__u8 proto;
	__u8 side;           /* the side of the conntrack key that sends in direction 0 */
	__u8 closed;         /* true: both ends have sent FIN, or one has sent RST */
	__u8 proxied;        /* true: FLOW_PROXY */
	__u8 pad[4];
	struct cached_direction way[2]; /* by direction */
};

/* Two-way set associative, like paths. Has one element if flows are not tracked. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << FLOW_CACHE_BITS);
	__type(key, __u32);
	__type(value, struct cached_flow);
} flow_cache SEC(".maps");

/* Returns the index where the packet's lookup starts. Sums make it the same for both directions. */
INLINE __u32 flow_cache_index(const struct packet *pkt)
{
	__u64 h = (pkt->src.d[0] + pkt->src.d[1] + pkt->dst.d[0] + pkt->dst.d[1]) * 0x9e3779b97f4a7c15ULL;

	h += ((__u32)pkt->sport + pkt->dport) * 0x94d049bb133111ebULL;
	return h >> (64 - FLOW_CACHE_BITS);
}

/* Two adjacent ports, read as one word. may_alias exempts the access from strict aliasing. */
typedef __u32 __attribute__((may_alias)) both_ports;

INLINE __u32 cached_ports(const __be16 *port)
{
	return *(const both_ports *)port;
}

INLINE bool cached_flow_matches(const struct packet *pkt, const struct cached_flow *k, int direction)
{
	return cached_ports(&k->port[2 * direction]) == cached_ports(&pkt->sport) &&
	       addr_equal(&k->addr[direction], &pkt->src) && addr_equal(&k->addr[!direction], &pkt->dst);
}

enum cached_direction_index {
	DIRECTION_FIRST,  /* of the packet that created the copy */
	DIRECTION_SECOND, /* the opposite one */
	DIRECTION_NONE,   /* the packet belongs to another flow */
};

/* Returns the packet's direction in the cached flow. */
INLINE enum cached_direction_index cached_flow_direction(const struct packet *pkt, const struct cached_flow *k)
{
	if (unlikely(k->proto != pkt->proto))
		return DIRECTION_NONE;
	if (cached_flow_matches(pkt, k, DIRECTION_FIRST))
		return DIRECTION_FIRST;
	return cached_flow_matches(pkt, k, DIRECTION_SECOND) ? DIRECTION_SECOND : DIRECTION_NONE;
}

/* Bounds the validity in ticks, so that a very old copy does not become valid again when the clock wraps around. */
#define FLOW_CACHE_TICKS_MAX 0x10000

/* Validity of a copy in ticks: some 30 ms, so that slots of short flows are soon reusable. */
INLINE __u32 flow_cache_ticks(void)
{
	return config.hz / 32 + 1;
}

INLINE bool cached_flow_valid(const struct cached_flow *k)
{
	return k->valid_until - clock_now() - 1 < FLOW_CACHE_TICKS_MAX;
}

/*
 * Finds the copy of the packet's flow, valid or not, and the packet's direction. Returns NULL if there is none.
 * Cost: per packet, where flows are tracked.
 */
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

/* The barrier keeps the mask: the compiler knows that a direction is 0 or 1, the verifier does not. */
INLINE struct cached_direction *cached_direction(struct cached_flow *k, __u32 direction)
{
	barrier_var(direction);
	return &k->way[direction & 1];
}

/* Whether the packet can begin or reset a flow, and must take the full path: SYN without ACK, and RST. */
INLINE bool packet_changes_flow(const struct packet *pkt)
{
	return pkt->tcp_flags & (TCP_SYN | TCP_RST) && (pkt->tcp_flags & (TCP_ACK | TCP_RST)) != TCP_ACK;
}

/* Whether the cached decision applies to the packet. Cost: per packet. */
INLINE bool cached_direction_usable(const struct packet *pkt, const struct cached_flow *k, struct cached_direction *w)
{
	return !packet_changes_flow(pkt) && w->path.in_ifindex == pkt->ifindex && cached_flow_valid(k) &&
	       path_is_current(&w->path);
}

/* Counts a packet. Cost: per packet. */
INLINE void cached_direction_count(const struct __sk_buff *skb, const struct packet *pkt, struct cached_direction *w)
{
	w->packets++;
	w->bytes += skb->len;
	w->tcp_flags |= pkt->tcp_flags;
}

/* Clears the counters, after they were flushed. */
INLINE void cached_direction_clear(struct cached_direction *w)
{
	w->packets = 0;
	w->bytes = 0;
}

/* Caches the decision for packets of one direction, which arrive by the device, for as long as the copy is valid. */
INLINE void cached_direction_set(struct cached_direction *w, __u32 in_ifindex, const struct path *path)
{
	w->path = *path;
	w->path.in_ifindex = in_ifindex;
	w->path.fast = path_fast(path);
}

/*
 * Whether a decision of the forwarding cache applies to all packets of one direction of the tracked flow: they need
 * neither translation nor another policy lookup.
 */
INLINE bool cached_flow_takes(const struct cached_flow *k, const struct path *p)
{
	return p->flags & PATH_TRACKED && !(p->flags & ~(PATH_TRACKED | PATH_POLICY | PATH_L7)) &&
	       (!(p->flags & PATH_POLICY) || k->policy_epoch == p->epoch);
}

/*
 * Caches the decision for replies if the forwarding cache has it, which spares the first one the full path. path is
 * that of the packet, whose output device replies arrive by. Cost: per flow, a lookup.
 */
INLINE void cached_reply_set(struct cached_flow *k, const struct packet *pkt, const struct path *path)
{
	bool any = config.wire_any && pkt->hook == HOOK_FROM_POD && path->action != PATH_POD;
	__u64 hash = any ? addr_hash(&pkt->src) : addr_pair_hash(&pkt->dst, &pkt->src);
	struct cached_path *p = path_lookup(hash >> config.path_shift, &pkt->dst, &pkt->src, path->ifindex, any);

	if (p && cached_flow_takes(k, &p->path))
		cached_direction_set(&k->way[1], path->ifindex, &p->path);
}

/* Extends the copy's validity after a flush, and clears its forwarding decisions: they are looked up again. */
INLINE void cached_flow_renew(struct cached_flow *k)
{
	k->way[0].path.in_ifindex = 0;
	k->way[1].path.in_ifindex = 0;
	k->valid_until = clock_now() + flow_cache_ticks();
}

/* Fills the slot with a copy of the packet's flow, whose conntrack entry has counted all packets. */
INLINE void cached_flow_fill(struct cached_flow *k, const struct packet *pkt, __u32 side, __u32 policy_epoch)
{
	k->addr[0] = pkt->src;
	k->addr[1] = pkt->dst;
	k->port[0] = k->port[3] = pkt->sport;
	k->port[1] = k->port[2] = pkt->dport;
	k->proto = pkt->proto;
	k->side = side;
	k->closed = false;
	k->policy_epoch = policy_epoch;
	cached_direction_clear(&k->way[0]);
	cached_direction_clear(&k->way[1]);
	k->way[0].tcp_flags = 0;
	k->way[1].tcp_flags = 0;
	cached_flow_renew(k);
}

/*
 * Checks whether a FIN or RST that was added to the copy ends the flow. If so, returns true and invalidates the copy:
 * the next packet, which is mostly the last one, flushes it. Cost: a few packets per connection.
 */
INLINE bool cached_flow_close(struct cached_flow *k)
{
	if (k->closed || !((k->way[0].tcp_flags | k->way[1].tcp_flags) & TCP_RST ||
			   k->way[0].tcp_flags & k->way[1].tcp_flags & TCP_FIN))
		return false;
	k->closed = true;
	k->valid_until = clock_now();
	return true;
}

/*
 * Whether another flow may use the slot. An empty slot needs a test of its own: jiffies start five minutes before they
 * wrap around, and shortly before that tick 0 counts as valid.
 */
INLINE bool cached_flow_reusable(const struct cached_flow *k)
{
	return !k->valid_until || !cached_flow_valid(k);
}

/* Finds the slot for a copy: the flow's own, or a reusable one. Returns NULL if both slots of the set are in use. */
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
	if (cached_flow_direction(pkt, second) != DIRECTION_NONE || !cached_flow_reusable(first)) {
		if (cached_flow_direction(pkt, second) != DIRECTION_NONE || cached_flow_reusable(second))
			return second;
		return NULL;
	}
	return first;
}

#endif
