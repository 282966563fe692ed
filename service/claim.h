/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Creates NAT entries of Services, with a NAT port if the backend is to see the node's address. Shared by tc and XDP,
 * as nat_entry.h is.
 */
#ifndef MYELIN_CLAIM_H
#define MYELIN_CLAIM_H

#include "flood.h"

#define NAT_ENTRY_ATTEMPTS 8 /* candidate ports of a flow */

/* Returns the candidate port of the attempt, host byte order. */
INLINE __u16 nat_entry_port(const struct packet *pkt, __u32 attempt)
{
	return port_candidate(pkt, attempt, config.lb_port_min, config.lb_port_max);
}

/* Returns an enum port_rank: how readily the port of another flow is given to the packet's flow. */
INLINE __u32 nat_entry_rank(const struct nat_entry *t, const struct packet *pkt)
{
	bool answered = t->flags & NAT_ENTRY_REPLIED && !port_exchanged(t->packets[0], t->packets[1], t->seen);
	bool proven = pkt->proto == IPPROTO_TCP ? nat_entry_established(t) : answered;

	if (nat_entry_expired(t, pkt->proto))
		return PORT_FREE;
	if (!proven && !flow_had_time(nat_entry_created(t)))
		return PORT_USED; /* as in nat_rank */
	if (nat_entry_closing(t))
		return port_rank_closed(pkt, t->seen, t->timestamp, nat_entry_clean(t));
	return proven ? PORT_USED : PORT_YIELDS;
}

/*
 * Whether the new flow n may take over the tuple of replies of the entry t. It may if t has expired or ranks no worse
 * than the given rank, or if the client reuses its port for another Service and t is closed.
 */
INLINE bool nat_entry_replaceable(const struct nat_entry *t, const struct nat_entry *n, const struct packet *pkt,
				  __u32 rank)
{
	if (nat_entry_expired(t, pkt->proto) || (nat_entry_closing(t) && !(n->flags & NAT_ENTRY_SNAT)))
		return true;
	return rank != PORT_FREE && nat_entry_rank(t, pkt) <= rank;
}

/*
 * Finds the flow that has the tuple c->reply_key, and sets c->rival_key to its key. Returns NULL if there is none: the
 * tuple is free, or its flow is gone, or it belongs to the flow c->nat_key itself. Cost: per flow, one or two lookups.
 */
INLINE struct nat_entry *nat_entry_rival(struct cpu *c)
{
	struct nat_reply *r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);

	if (!r)
		return NULL;
	c->rival_key = r->request;
	return nat_tuple_equal(&c->rival_key, &c->nat_key) ? NULL : bpf_map_lookup_elem(&nat_entries, &c->rival_key);
}

/*
 * Whether the flow c->nat_key has an entry, although its packet's hook took it for new without a lookup. Cost: per flow
 * that could not be inserted, one lookup.
 */
INLINE bool nat_entry_known(struct cpu *c)
{
	if (c->nat_unchecked && bpf_map_lookup_elem(&nat_entries, &c->nat_key))
		c->nat_known = true;
	return c->nat_known;
}

/*
 * Claims the tuple c->reply_key for the flow c->nat_key. A flow that ranks no worse than the given rank is replaced.
 * Returns false if another flow has the tuple, or this one is known.
 */
INLINE bool nat_reply_claim(struct cpu *c, __u32 rank)
{
	struct nat_entry *t;
	int err = bpf_map_update_elem(&nat_replies, &c->reply_key, nat_reply_new(c, &c->nat_entry), BPF_NOEXIST);

	if (likely(!err))
		return true;
	if (nat_entry_known(c))
		return false;
	if (err == -E2BIG) {
		c->nat_full = DROP_MAP_FULL;
		return false;
	}
	t = nat_entry_rival(c);
	if (t && !nat_entry_replaceable(t, &c->nat_entry, &c->pkt, rank))
		return false;
	if (t)
		bpf_map_delete_elem(&nat_entries, &c->rival_key);
	return !bpf_map_update_elem(&nat_replies, &c->reply_key, &c->nat_reply, BPF_EXIST);
}

/* Whether packets of the two flows look the same to the backend, as far as the entries tell. */
INLINE bool nat_entry_same_tuple(const struct nat_entry *t, const struct nat_entry *n)
{
	return t->backend_port == n->backend_port && t->nat_port == n->nat_port &&
	       !((t->flags ^ n->flags) & (NAT_ENTRY_SNAT | NAT_ENTRY_DSR)) &&
	       addr_equal(&t->backend, &n->backend) && addr_equal(&t->snat, &n->snat);
}

/*
 * Inserts c->nat_entry with the key c->nat_key, and the entry of its replies. Returns 1 if both are there; otherwise
 * c->nat_full says whether for want of room. Cost: per flow.
 */
APART int nat_entry_insert_once(__u32 rank)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t, *n;
	bool replies;
	int err;

	if (!c)
		return 0;
	n = &c->nat_entry;
	c->nat_full = 0;
	nat_reply_tuple(c, &c->nat_key, n);
	replies = nat_entry_has_reply(n);
	if (replies && !nat_reply_claim(c, rank))
		return 0;
	err = bpf_map_update_elem(&nat_entries, &c->nat_key, n, BPF_NOEXIST);
	if (likely(!err))
		return 1;
	if (err == -E2BIG)
		c->nat_full = DROP_MAP_FULL;
	t = nat_entry_known(c) ? NULL : bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (t && nat_entry_same_tuple(t, n))
		return 1; /* another CPU has begun the flow */
	if (replies)
		bpf_map_delete_elem(&nat_replies, &c->reply_key);
	return 0;
}

/* The same; if there is no room, evicts a flow. */
APART int nat_entry_insert(__u32 rank)
{
	struct cpu *c = cpu_this();

	if (likely(nat_entry_insert_once(rank)))
		return 1;
	if (!c || likely(!c->nat_full))
		return 0;
	if (!flood_may_evict(c)) {
		c->nat_full = DROP_NEW_FLOW_RATE;
		return 0;
	}
	return nat_evict() && nat_entry_insert_once(rank);
}

/* Finds the flow that has the port to the backend of c->nat_entry, as nat_entry_rival does. */
INLINE struct nat_entry *nat_entry_port_rival(struct cpu *c, __u16 port)
{
	c->nat_entry.nat_port = bpf_htons(port);
	nat_reply_tuple(c, &c->nat_key, &c->nat_entry);
	return nat_entry_rival(c);
}

/*
 * Rates a port for c->nat_entry and keeps it if it is the best so far. Returns 1 if the search can end: the best port
 * is free or safe to take over. Cost: per flow.
 */
APART int nat_entry_offer(__u32 port)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	struct nat_entry *t;
	__u32 idle;

	if (!c)
		return 0;
	s = port_search(c);
	t = nat_entry_port_rival(c, port);
	if (t) {
		idle = clock_now() - t->seen;
		port_offer(s, port, nat_entry_rank(t, &c->pkt), idle);
		port_count(s, port, port_holder(&c->rival_key.src), idle);
	} else {
		port_offer(s, port, PORT_FREE, -1);
	}
	return s->rank <= PORT_NEWER;
}

/* Rates the candidate ports until one is free or safe to take over. Cost: per flow. */
APART int nat_entry_scan(void)
{
	struct cpu *c = cpu_this();
	int i;

	if (!c)
		return 0;
	port_search_reset(port_search(c));
	for (i = 0; i < NAT_ENTRY_ATTEMPTS; i++) {
		if (nat_entry_offer(nat_entry_port(&c->pkt, i)))
			break;
	}
	return 0;
}

/* Whether a masqueraded flow of a pod uses the port for the backend of c->nat_entry. Counterpart of nat_crosses. */
INLINE bool nat_entry_port_shared(struct cpu *c, __u16 port)
{
	const struct nat_entry *n = &c->nat_entry;
	struct flow *f;

	if (!port_crosses(PORT_SERVICE, port) || !(config.masquerade4 || config.masquerade6))
		return false;
	flow_key_of(&c->key, &n->snat, bpf_htons(port), &n->backend, n->backend_port, c->pkt.proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	return f && f->flags & FLOW_NAT && !flow_expired(f, c->pkt.proto);
}

/* Whether a flow of a Service uses the port of the node for the server that the pod's packet is sent to. Slow path. */
INLINE bool nat_entry_port_used(struct cpu *c, __u16 port)
{
	struct nat_entry *t;
	struct nat_reply *r;

	nat_tuple_set(&c->reply_key, &c->pkt.dst, c->pkt.dport, &c->snat, bpf_htons(port), c->pkt.proto);
	r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);
	t = r ? bpf_map_lookup_elem(&nat_entries, &r->request) : NULL;
	return t && !nat_entry_expired(t, c->pkt.proto);
}

APART int nat_entry_port_taken(__u32 port)
{
	struct cpu *c = cpu_this();

	return !c || nat_entry_port_used(c, port);
}

/* Gives c->nat_entry the port. Returns 0 if a masqueraded flow has it. Cost: per flow. */
INLINE bool nat_entry_prepare(struct cpu *c, __u16 port)
{
	if (nat_entry_port_shared(c, port))
		return false;
	c->nat_entry.nat_port = bpf_htons(port);
	return true;
}

/* Inserts c->nat_entry with the port of the closed connection with the same ends, if the backend is the same. */
INLINE bool nat_entry_continue(struct cpu *c)
{
	const struct nat_entry *n = &c->nat_entry;
	bool same = n->flags & NAT_ENTRY_SNAT && n->backend_id == c->reuse_backend;

	c->reuse_backend = 0;
	return same && nat_entry_prepare(c, bpf_ntohs(c->reuse_port)) && nat_entry_insert(PORT_FREE);
}

/* Inserts c->nat_entry, with the best of its candidates if it needs a port. Cost: per flow. */
INLINE bool nat_entry_place(struct cpu *c)
{
	struct port_search *s = port_search(c);
	int i;

	if (c->reuse_backend && nat_entry_continue(c))
		return true;
	if (!(c->nat_entry.flags & NAT_ENTRY_SNAT)) {
		/* Retries once, in case another CPU was faster. */
		return nat_entry_insert(PORT_FREE) || (!c->nat_known && nat_entry_insert(PORT_FREE));
	}
	if (likely(nat_entry_prepare(c, nat_entry_port(&c->pkt, 0)) && nat_entry_insert(PORT_FREE)))
		return true;
	s->skip = 0;
	for (i = 0; i < NAT_CLAIMS && !c->nat_known; i++) {
		nat_entry_scan();
		if (s->rank == PORT_USED || c->nat_full)
			break;
		if (nat_entry_prepare(c, s->port) && nat_entry_insert(s->rank))
			return true;
		s->skip = s->port;
	}
	return false;
}

/* Records the new flow for what evicts and limits flows. Cost: per flow. */
INLINE void nat_entry_inserted(struct cpu *c)
{
	nat_ring_put(c);
	flood_count(c);
}

/* Returns why c->nat_entry could not be inserted, or 0 if the flow can do without. */
INLINE enum next nat_entry_refusal(struct cpu *c)
{
	if (c->nat_known || !c->nat_full)
		return DROP_NAT_NO_PORT;
	if (!nat_entry_optional(&c->nat_entry))
		return c->nat_full;
	c->stateless++;
	return NEXT_FORWARD;
}

/*
 * Inserts c->nat_entry, with the best of its candidates if it needs a port. Returns NEXT_FORWARD or a drop reason, of
 * no meaning if c->nat_known is set. Cost: per flow.
 */
APART enum next nat_entry_claim(void)
{
	struct cpu *c = cpu_this();

	if (!c)
		return DROP_MAP_FULL;
	c->nat_full = 0;
	c->nat_known = false;
	if (unlikely(!nat_entry_place(c)))
		return nat_entry_refusal(c);
	nat_entry_inserted(c);
	return NEXT_FORWARD;
}

/* Returns a free port from min to max for c->nat_entry, 0 if there is none or the budget is used up. */
INLINE int nat_entry_sweep(struct cpu *c, __u32 min, __u32 max)
{
	__u32 start = sweep_start(min, max);
	int port = sweep_range(PORT_SERVICE, start, max);

	return port ? port : sweep_range(PORT_SERVICE, min, start - 1);
}

/*
 * Returns a port from the Services' half of the pool, else from masquerading's half, else one of the client that holds
 * most of the candidates. Sets the rank up to which an entry with that port may be replaced.
 */
INLINE int nat_entry_any(struct cpu *c)
{
	struct port_search *s = port_search(c);
	int port = nat_entry_sweep(c, config.lb_port_min, config.lb_port_max);

	s->rank = PORT_CLOSED;
	if (port || !config.nat_port_max)
		return port;
	port = nat_entry_sweep(c, config.nat_port_min, config.nat_port_max);
	if (port)
		ports_borrowed = true;
	else
		s->rank = PORT_USED;
	return port ? port : port_reclaim(s, &c->nat_key.src, NAT_ENTRY_ATTEMPTS);
}

/*
 * Inserts c->nat_entry with any other port, after nat_entry_claim found no candidate. Returns NEXT_FORWARD or a drop
 * reason. Slow path.
 */
APART enum next nat_entry_claim_any(void)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	int i, port;

	if (!c)
		return DROP_MAP_FULL;
	c->nat_full = 0;
	s = port_search(c);
	for (i = 0; i < NAT_CLAIMS; i++) {
		port = nat_entry_any(c);
		if (!port)
			break;
		if (nat_entry_prepare(c, port) && nat_entry_insert(s->rank)) {
			nat_entry_inserted(c);
			return NEXT_FORWARD;
		}
		s->skip = port;
	}
	return nat_entry_refusal(c);
}

#endif
