/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Creates NAT entries of Services, with a NAT port if the backend is to see the node's address. Shared by tc and XDP,
 * as nat_entry.h is.
 */
#ifndef MYELIN_CLAIM_H
#define MYELIN_CLAIM_H

#include "nat_entry.h"

/* Whether the backend cannot tell the flows of two entries with the same tuple apart. */
INLINE bool nat_entry_conflicts(const struct nat_entry *t, const struct nat_entry *n)
{
	return t->backend_port == n->backend_port && addr_equal(&t->backend, &n->backend) &&
	       addr_equal(&t->snat, &n->snat);
}

/* Returns an enum port_rank: how readily the port of another flow is given to the packet's flow. */
INLINE __u32 nat_entry_rank(const struct nat_entry *t, const struct packet *pkt)
{
	bool answered = t->flags & NAT_ENTRY_REPLIED && !port_exchanged(t->packets[0], t->packets[1], t->seen);
	bool proven = pkt->proto == IPPROTO_TCP ? nat_entry_established(t) : answered;

	if (nat_entry_expired(t, pkt->proto))
		return PORT_FREE;
	if (!proven && !flow_had_time(t->created))
		return PORT_USED; /* as in nat_rank */
	if (nat_entry_closing(t))
		return port_rank_closed(pkt, t->seen, t->timestamp, nat_entry_clean(t));
	return proven ? PORT_USED : PORT_YIELDS;
}

/*
 * Whether the new flow n may take the slot of the entry t. It may if t has expired. It also may if the backend cannot
 * tell the two flows apart, and t is closed (the client reuses its port, for this Service or another one) or ranks no
 * worse than the given rank.
 */
INLINE bool nat_entry_replaceable(const struct nat_entry *t, const struct nat_entry *n, const struct packet *pkt,
				  __u32 rank)
{
	if (nat_entry_expired(t, pkt->proto))
		return true;
	if (!nat_entry_conflicts(t, n))
		return false;
	if (nat_entry_is_request(t, pkt) && nat_entry_closing(t))
		return true;
	if (nat_entry_closing(t) && !(n->flags & NAT_ENTRY_SNAT))
		return true;
	return rank != PORT_FREE && nat_entry_rank(t, pkt) <= rank;
}

/*
 * Deletes the entry with the key c->nat_key to make room for the packet's flow. An index entry of that flow itself
 * stays, since it has just been written.
 */
INLINE void nat_entry_replace(struct cpu *c, const struct nat_entry *t)
{
	if (t->flags & NAT_ENTRY_INDEXED && !nat_entry_is_request(t, &c->pkt)) {
		port_key_of(&c->port_key, &t->client, t->client_port, &t->frontend, t->frontend_port, c->nat_key.proto);
		bpf_map_delete_elem(&port_indexes, &c->port_key);
	}
	bpf_map_delete_elem(&nat_entries, &c->nat_key);
}

/* What nat_entry_examine finds in a slot. */
enum slot_state {
	SLOT_FREE = 1 << 0,     /* it has no entry, or not any more */
	SLOT_CONFLICT = 1 << 1, /* it has or had an entry that conflicts with c->nat_entry */
};

/*
 * Examines a slot of the tuple c->nat_key for c->nat_entry, and deletes an entry that may be replaced. Returns flags of
 * enum slot_state. A function of its own, so that the verifier checks it once and not for each slot. Cost: per flow.
 */
APART int nat_entry_examine(__u32 slot, __u32 rank)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;
	int state;

	if (!c)
		return SLOT_CONFLICT;
	c->nat_key.slot = slot;
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (!t)
		return SLOT_FREE;
	state = nat_entry_conflicts(t, &c->nat_entry) ? SLOT_CONFLICT : 0;
	if (!nat_entry_replaceable(t, &c->nat_entry, &c->pkt, rank))
		return state;
	nat_entry_replace(c, t);
	return state | SLOT_FREE;
}

/*
 * Returns a free slot of the tuple c->nat_key for c->nat_entry, or NAT_ENTRY_SLOTS if there is none or if another entry
 * conflicts.
 */
INLINE int nat_entry_slot(__u32 rank)
{
	int i, state, at = NAT_ENTRY_SLOTS;

	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		state = nat_entry_examine(i, rank);
		if (state & SLOT_FREE && at == NAT_ENTRY_SLOTS)
			at = i;
		if (state & SLOT_CONFLICT)
			return state & SLOT_FREE ? at : NAT_ENTRY_SLOTS; /* at most one entry conflicts */
	}
	return at;
}

/*
 * Inserts c->nat_entry under the tuple c->nat_key; an entry that ranks no worse than the given rank is replaced. If two
 * CPUs insert conflicting entries, the one in the lower slot wins. Returns 1 if the entry was inserted. Cost: per flow.
 */
APART int nat_entry_insert(__u32 rank)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t, *n;
	int i, at, err;

	if (!c)
		return 0;
	n = &c->nat_entry;
	at = nat_entry_slot(rank);
	if (at == NAT_ENTRY_SLOTS)
		return 0;
	c->nat_key.slot = at;
	err = bpf_map_update_elem(&nat_entries, &c->nat_key, n, BPF_NOEXIST);
	if (err)
		return 0;
	for (i = 0; i < NAT_ENTRY_SLOTS - 1; i++) {
		if (i >= at)
			break;
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		if (t && nat_entry_conflicts(t, n)) {
			c->nat_key.slot = at;
			bpf_map_delete_elem(&nat_entries, &c->nat_key);
			return 0;
		}
	}
	c->nat_key.slot = at;
	return 1;
}

/* Whether the entry translates only the client's port, and keeps its address. */
INLINE bool nat_entry_own_address(const struct nat_entry *n)
{
	return addr_equal(&n->snat, &n->client);
}

/*
 * Finds the entry with this port that conflicts with c->nat_entry, NULL if there is none. *room is then set if a slot
 * is free. Cost: per flow, one lookup; eight if the port is free, or shared by flows to other backends.
 */
INLINE struct nat_entry *nat_entry_rival(struct cpu *c, __u16 port, bool *room)
{
	const struct nat_entry *n = &c->nat_entry;
	struct nat_entry *t;
	int i;

	*room = false;
	nat_tuple_port(c, &c->pkt, port, nat_entry_own_address(n));
	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		if (!t || nat_entry_expired(t, c->pkt.proto))
			*room = true;
		else if (nat_entry_conflicts(t, n))
			return t;
	}
	return NULL;
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
	bool room;

	if (!c)
		return 0;
	s = port_search(c);
	t = nat_entry_rival(c, port, &room);
	if (t) {
		idle = clock_now() - t->seen;
		port_offer(s, port, nat_entry_rank(t, &c->pkt), idle);
		port_count(s, port, port_holder(&t->client), idle);
	} else if (room) {
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
	int i;

	nat_tuple_node(&c->nat_key, bpf_htons(port), c->pkt.proto);
	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		if (t && t->backend_port == c->pkt.dport && addr_equal(&t->backend, &c->pkt.dst) &&
		    addr_equal(&t->snat, &c->snat) && !nat_entry_expired(t, c->pkt.proto))
			return true;
	}
	return false;
}

APART int nat_entry_port_taken(__u32 port)
{
	struct cpu *c = cpu_this();

	return !c || nat_entry_port_used(c, port);
}

/*
 * Sets c->nat_key to the tuple of c->nat_entry with the port, and adds the port to the index if necessary. Returns 0 if
 * the port can't be taken. Cost: per flow.
 */
APART int nat_entry_prepare(__u32 number)
{
	struct cpu *c = cpu_this();
	struct nat_entry *n;
	__u16 port = number;
	bool own;

	if (!c)
		return 0;
	n = &c->nat_entry;
	own = nat_entry_own_address(n);
	if (nat_entry_port_shared(c, port))
		return 0;
	n->flags &= ~NAT_ENTRY_INDEXED;
	if (own || port != nat_entry_port(&c->pkt, 0)) {
		if (!port_index_put(c, &c->pkt, &n->snat, port, PORT_INDEX_SERVICE | (own ? PORT_INDEX_OWN : 0)))
			return 0;
		n->flags |= NAT_ENTRY_INDEXED;
	}
	nat_tuple_port(c, &c->pkt, port, own);
	return 1;
}

/*
 * Replaces the closed connection with the same ends by c->nat_entry, on the same port, if the backend is the same.
 * Deletes the closed connection's entry otherwise.
 */
INLINE bool nat_entry_continue(struct cpu *c)
{
	const struct nat_entry *n = &c->nat_entry;
	bool same = n->flags & NAT_ENTRY_SNAT && n->backend_id == c->reuse_backend;

	c->reuse_backend = 0;
	if (same && nat_entry_prepare(bpf_ntohs(c->reuse_key.port)) && nat_entry_insert(PORT_FREE))
		return true;
	bpf_map_delete_elem(&nat_entries, &c->reuse_key);
	return false;
}

/*
 * Inserts c->nat_entry, with the best of its candidates if it needs a port. Returns 0 or a drop reason. Cost: per flow.
 */
APART int nat_entry_claim(void)
{
	struct cpu *c = cpu_this();
	struct nat_entry *n;
	struct port_search *s;
	int i;

	if (!c)
		return DROP_MAP_FULL;
	n = &c->nat_entry;
	if (c->reuse_backend && nat_entry_continue(c))
		return 0;
	if (!(n->flags & NAT_ENTRY_SNAT)) {
		nat_tuple_client(&c->nat_key, &n->client, n->client_port, c->pkt.proto);
		/* Retries once, in case another CPU took the slot. */
		return nat_entry_insert(PORT_FREE) || nat_entry_insert(PORT_FREE) ? 0 : DROP_NAT_NO_PORT;
	}
	s = port_search(c);
	s->skip = 0;
	for (i = 0; i < NAT_CLAIMS; i++) {
		nat_entry_scan();
		if (s->rank == PORT_USED)
			break;
		if (nat_entry_prepare(s->port) && nat_entry_insert(s->rank))
			return 0;
		s->skip = s->port;
	}
	return DROP_NAT_NO_PORT;
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
	return port ? port : port_reclaim(s, &c->nat_entry.client, NAT_ENTRY_ATTEMPTS);
}

/*
 * Inserts c->nat_entry with any other port, after nat_entry_claim found no candidate. Returns 0 or a drop reason. Slow
 * path.
 */
APART int nat_entry_claim_any(void)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	int i, port;

	if (!c)
		return DROP_MAP_FULL;
	s = port_search(c);
	for (i = 0; i < NAT_CLAIMS; i++) {
		port = nat_entry_any(c);
		if (!port)
			break;
		if (nat_entry_prepare(port) && nat_entry_insert(s->rank))
			return 0;
		s->skip = port;
	}
	return DROP_NAT_NO_PORT;
}

#endif
