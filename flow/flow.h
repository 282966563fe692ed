/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Conntrack. A flow is one connection or exchange. It has one entry for both directions, also if it is translated, so
 * that its halves can't be evicted separately. Copies of entries in the per-CPU flow cache have the forwarding decision
 * of each direction, so that a packet of a known flow costs one lookup.
 */
#ifndef MYELIN_FLOW_H
#define MYELIN_FLOW_H

#include "cache.h"
#include "share.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

#define E2BIG 7
#define EEXIST 17
#define EDQUOT 122

INLINE bool addr_before(const struct addr *a, const struct addr *b)
{
	if (a->d[0] != b->d[0])
		return a->d[0] < b->d[0];
	return a->d[1] < b->d[1];
}

/* Fills in the key of packets from a:ap to b:bp. Returns the side that sends them. */
INLINE int flow_key_of(struct flow_key *k, const struct addr *a, __be16 ap, const struct addr *b, __be16 bp, __u8 proto)
{
	bool swap = addr_equal(a, b) ? bpf_ntohs(ap) > bpf_ntohs(bp) : !addr_before(a, b);

	if (swap) {
		k->addr[0] = *b;
		k->addr[1] = *a;
		k->port[0] = bp;
		k->port[1] = ap;
	} else {
		k->addr[0] = *a;
		k->addr[1] = *b;
		k->port[0] = ap;
		k->port[1] = bp;
	}
	k->proto = proto;
	__builtin_memset(k->pad, 0, sizeof(k->pad));
	return swap;
}

/* Fills in the CPU's key from its packet. Returns the side that sends it. */
INLINE int flow_key_own(struct cpu *c)
{
	struct packet *pkt = &c->pkt;

	return flow_key_of(&c->key, &pkt->src, pkt->sport, &pkt->dst, pkt->dport, pkt->proto);
}

/* Whether the TCP handshake is complete: the opener has acknowledged the reply. */
INLINE bool flow_established(const struct flow *f)
{
	return f->flags & FLOW_REPLIED && f->side[f->origin & 1].tcp_flags & TCP_ACK;
}

/*
 * Whether the server of a closed masqueraded connection may be in TIME-WAIT, because it sent the first FIN. Its port is
 * not free then.
 */
INLINE bool flow_time_wait(const struct flow *f)
{
	return (f->flags & (FLOW_NAT | FLOW_POD_FIN)) == FLOW_NAT &&
	       !((f->side[0].tcp_flags | f->side[1].tcp_flags) & TCP_RST);
}

INLINE __u32 flow_seconds(const struct flow *f, __u8 proto)
{
	if (f->flags & FLOW_CLOSING)
		return flow_time_wait(f) ? FLOW_TIME_WAIT_SECONDS : FLOW_CLOSING_SECONDS;
	if (proto == IPPROTO_TCP)
		return flow_established(f) ? FLOW_TCP_SECONDS : FLOW_SYN_SECONDS;
	return FLOW_OTHER_SECONDS;
}

/* Ticks without a packet after which both ends of a closed TCP connection have received its last segment. */
#define FLOW_QUIET_TICKS (config.hz / 100 + 1)

INLINE bool flow_quiet(__u32 seen)
{
	return clock_before(seen + FLOW_QUIET_TICKS, clock_now());
}

/* Whether a flow that was created at the tick had a quarter of a second to prove that both ends exist. */
INLINE bool flow_had_time(__u64 created)
{
	return created + config.hz / 4 < bpf_jiffies64();
}

INLINE bool flow_expired(const struct flow *f, __u8 proto)
{
	return clock_before(f->seen + flow_seconds(f, proto) * config.hz, clock_now());
}

/* The barrier keeps the mask: the compiler knows that a side is 0 or 1, the verifier does not. */
INLINE struct flow_side *flow_side(struct flow *f, __u32 side)
{
	barrier_var(side);
	return &f->side[side & 1];
}

/* Whether the flow has ended: one side has sent RST, or both have sent FIN. */
INLINE bool flow_ended(const struct flow *f)
{
	return (f->side[0].tcp_flags | f->side[1].tcp_flags) & TCP_RST ||
	       f->side[0].tcp_flags & f->side[1].tcp_flags & TCP_FIN;
}

/* Records TCP flags that are new on this side. */
INLINE void flow_tcp(struct __sk_buff *skb, const struct packet *pkt, struct flow *f, struct flow_side *s)
{
	s->tcp_flags |= pkt->tcp_flags;
	if (pkt->tcp_flags & TCP_FIN)
		s->timestamp = pkt->timestamp;
	if (f->flags & FLOW_NAT && pkt->tcp_flags & TCP_FIN && s == flow_side(f, f->pod_side) &&
	    !(flow_side(f, !f->pod_side)->tcp_flags & TCP_FIN))
		f->flags |= FLOW_POD_FIN;
	if (f->flags & FLOW_CLOSING || !flow_ended(f))
		return;
	f->flags |= FLOW_CLOSING;
	event_flow(skb, EVENT_FLOW_END, f->rule);
}

/* Counts the packet in the entry. Atomic, because packets of one side may arrive on several CPUs. */
INLINE void flow_count(struct __sk_buff *skb, const struct packet *pkt, struct flow *f, int side)
{
	struct flow_side *s = flow_side(f, side);
	__u32 now = clock_now();

	__sync_fetch_and_add(&s->packets, 1);
	__sync_fetch_and_add(&s->bytes, skb->len);
	if (f->seen != now)
		f->seen = now;
	if (unlikely(side != f->origin && !(f->flags & FLOW_REPLIED)))
		f->flags |= FLOW_REPLIED;
	if (unlikely(pkt->tcp_flags & ~s->tcp_flags))
		flow_tcp(skb, pkt, f, s);
}

INLINE bool flow_syn(const struct packet *pkt)
{
	return pkt->proto == IPPROTO_TCP && (pkt->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* What a port of the node is used for. */
enum port_kind {
	PORT_MASQUERADE,
	PORT_SERVICE,
};

/* Whether the port is in the kind's half of the pool of NAT ports. */
INLINE bool port_in(__u32 kind, __u16 port)
{
	return kind == PORT_SERVICE ? port >= config.lb_port_min && port <= config.lb_port_max
				    : port >= config.nat_port_min && port <= config.nat_port_max;
}

/*
 * Clock tick until which entries are being copied from tables of another size, which the programs of before use; 0:
 * none is. The tick bounds it, in case the agent dies.
 */
__u32 entries_copied_until;

/*
 * Whether the packet, which has no entry, may be of a flow whose entry is still to be copied. It is dropped, and sent
 * again by TCP: without the entry, a reset would end its connection. Cost: per flow, a comparison.
 */
INLINE bool flow_awaits_entry(const struct packet *pkt)
{
	return unlikely(entries_copied_until) && pkt->proto == IPPROTO_TCP && !flow_syn(pkt) &&
	       clock_before(clock_now(), entries_copied_until);
}

/* Records the verdict of the CPU's policy lookup in the entry, if policies are enforced on c->path. */
INLINE void flow_set_verdict(const struct cpu *c, struct flow *f)
{
	if (!policy_enforced(&c->path))
		return;
	f->rule[0] = c->policy.rule[0];
	f->rule[1] = c->policy.rule[1];
	barrier(); /* the proxy reads the epoch first: it must not take older rules for those of the epoch */
	f->policy_epoch = c->path.epoch;
	if (c->policy.proxy)
		f->flags |= FLOW_PROXY; /* and never less: the ends have the proxy's sequence numbers */
}

/*
 * Resets the state of a closed flow when a SYN opens a new connection between the same ports, which is as old as its
 * SYN: the agent copies new flows to larger tables, and purges flows that are older than their pod.
 */
INLINE void flow_reopen(const struct cpu *c, struct flow *f, int side)
{
	if (!(f->flags & FLOW_CLOSING) || !flow_syn(&c->pkt))
		return;
	f->created = bpf_jiffies64();
	f->flags &= FLOW_NAT | FLOW_INDEXED | (f->flags & FLOW_NAT ? FLOW_PROXY : 0);
	f->origin = side;
	f->side[0].tcp_flags = 0;
	f->side[1].tcp_flags = 0;
	flow_set_verdict(c, f);
}

/*
 * Prepares a new entry for a flow that the given side opens, in c->flow since it is too large for the stack.
 * Cost: per flow.
 */
INLINE struct flow *flow_new(struct cpu *c, int side)
{
	struct flow *f = &c->flow;

	__builtin_memset(f, 0, sizeof(*f));
	f->created = bpf_jiffies64();
	f->seen = clock_now();
	f->slot = c->pkt.slot;
	f->origin = side;
	flow_set_verdict(c, f);
	if (f->policy_epoch)
		f->origin = side ^ c->policy.reply;
	return f;
}

/* Flushes the counters of one direction of the copy to the entry's side. */
INLINE void flow_flush_side(struct cached_direction *w, struct flow *f, int side)
{
	struct flow_side *s = flow_side(f, side);

	if (!w->packets)
		return;
	__sync_fetch_and_add(&s->packets, w->packets);
	__sync_fetch_and_add(&s->bytes, w->bytes);
	s->tcp_flags |= w->tcp_flags;
	if (side != f->origin && !(f->flags & FLOW_REPLIED))
		f->flags |= FLOW_REPLIED;
	cached_direction_clear(w);
}

/* Flushes the copy's counters and TCP flags to the entry. */
INLINE void flow_flush(struct cached_flow *k, struct flow *f)
{
	flow_flush_side(&k->way[0], f, k->side & 1);
	flow_flush_side(&k->way[1], f, ~k->side & 1);
	f->seen = clock_now();
	if (flow_ended(f))
		f->flags |= FLOW_CLOSING;
}

/* Flushes the counters of a copy to its entry, if that still exists, so that the slot can be reused. Cost: per flow. */
INLINE void flow_cache_evict(struct cached_flow *k)
{
	struct flow_key key;
	struct flow *f;

	if (!k->way[0].packets && !k->way[1].packets)
		return;
	flow_key_of(&key, &k->addr[0], k->port[0], &k->addr[1], k->port[1], k->proto);
	f = bpf_map_lookup_elem(&flows, &key);
	if (f)
		flow_flush(k, f);
}

/*
 * Adds the CPU's flow, whose entry has counted all packets, to the flow cache. c->path becomes the forwarding decision
 * of the packet's direction. Cost: per flow.
 */
APART int flow_cache_insert(__u32 side)
{
	struct cpu *c = cpu_this();
	struct cached_flow *k;

	if (!c || c->pkt.tcp_flags & (TCP_FIN | TCP_RST))
		return 0;
	k = flow_cache_slot(&c->pkt);
	if (!k)
		return 0;
	if (cached_flow_direction(&c->pkt, k) == DIRECTION_NONE)
		flow_cache_evict(k);
	cached_flow_fill(k, &c->pkt, side, c->path.epoch);
	k->proxied = c->path.action == PATH_PROXY;
	if (c->path.action == PATH_NONE || c->path.action == PATH_RESOLVE)
		return 0;
	cached_direction_set(&k->way[0], c->pkt.ifindex, &c->path);
	k->way[0].path.generation = epoch_generation() - 1; /* it may be new: the next packet revalidates it */
	if (!k->proxied)
		cached_reply_set(k, &c->pkt, &c->path);
	return 0;
}

/* Copies the entry's TCP flags to its copy, which a packet of either direction may have created. */
INLINE void flow_cache_sync(const struct cpu *c, struct flow *f, int side)
{
	int direction;
	struct cached_flow *k = flow_cache_find(&c->pkt, &direction);

	if (!k)
		return;
	cached_direction(k, direction)->tcp_flags = flow_side(f, side)->tcp_flags;
	cached_direction(k, !direction)->tcp_flags = flow_side(f, !side)->tcp_flags;
}

/* Sends the event of the flow's end, if the FIN or RST that was added to the copy ends it. */
INLINE void cached_flow_end(struct __sk_buff *skb, struct cached_flow *k)
{
	if (cached_flow_close(k))
		event_flow(skb, EVENT_FLOW_END, NULL);
}

/* Counts a packet in the copy. Cost: per packet. */
INLINE void flow_cache_count(struct __sk_buff *skb, struct cpu *c, struct cached_flow *k, struct cached_direction *w)
{
	cached_direction_count(skb, &c->pkt, w);
	if (unlikely(c->pkt.tcp_flags & TCP_FIN))
		cached_flow_end(skb, k);
}

/* Whether all flows on the path have conntrack entries, translated or not, and may be in the flow cache. */
INLINE bool flow_tracked(const struct path *p)
{
	return p->flags & PATH_TRACKED;
}

/*
 * Creates the entry of the CPU's packet; with has_path set, c->path is valid and the flow is cached. Returns 0 or a
 * negative error: -EDQUOT if the endpoint has used up its share of entries. Cost: per flow.
 */
INLINE int flow_insert(struct __sk_buff *skb, struct cpu *c, int side, bool has_path)
{
	struct flow *f = flow_new(c, side);
	int err;

	if (!share_take(SHARE_FLOWS, f->slot, config.flow_entries))
		return -EDQUOT;
	flow_count(skb, &c->pkt, f, side);
	/* err must be an int: before kernel 6.4 map operations return one, and the result's upper half is undefined. */
	err = bpf_map_update_elem(&flows, &c->key, f, BPF_NOEXIST);
	if (err)
		return err;
	/* An audited denial has been reported. */
	if (!policy_enforced(&c->path) || !c->policy.denied)
		event_flow(skb, EVENT_FLOW_BEGIN, f->rule);
	if (has_path && flow_tracked(&c->path))
		flow_cache_insert(side);
	return 0;
}

/*
 * Counts the CPU's packet in the entry with key c->key, which is created if missing; with has_path set, c->path is
 * valid and the flow is cached. Returns NEXT_FORWARD, or a drop reason if there is no room. A SYN is inserted without a
 * lookup, which fails with EEXIST if another CPU has created the entry or the ports are used again. Cost: per flow.
 */
INLINE enum next flow_put(struct __sk_buff *skb, struct cpu *c, int side, bool has_path)
{
	struct flow *f = flow_syn(&c->pkt) ? NULL : bpf_map_lookup_elem(&flows, &c->key);
	struct cached_flow *k;
	int err, direction;

	if (!f) {
		/* An entry of an unsolicited reply would permit requests in the opposite direction. */
		if (l4_is_icmp_reply(&c->pkt))
			return NEXT_FORWARD;
		err = flow_insert(skb, c, side, has_path);
		if (!err)
			return NEXT_FORWARD;
		if (err != -EEXIST)
			return err == -EDQUOT ? DROP_FLOW_LIMIT : DROP_MAP_FULL;
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (!f)
			return DROP_MAP_FULL;
	}
	k = flow_cache_find(&c->pkt, &direction);
	if (k)
		flow_flush(k, f);
	flow_reopen(c, f, side);
	flow_count(skb, &c->pkt, f, side);
	if (has_path && flow_tracked(&c->path)) {
		flow_cache_insert(side);
		flow_cache_sync(c, f, side);
	}
	return NEXT_FORWARD;
}

#endif
