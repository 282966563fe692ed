/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Making the row of a flow that packets are translated for, with a port of the node's where the backend sees that. As in nat_entry.h, tc and XDP share it. */
#ifndef MYELIN_CLAIM_H
#define MYELIN_CLAIM_H

#include "nat_entry.h"

/* Whether two flows behind one anchor look the same to a backend. */
INLINE bool nat_entry_conflicts(const struct nat_entry *t, const struct nat_entry *n)
{
	return t->backend_port == n->backend_port && addr_equal(&t->backend, &n->backend) && addr_equal(&t->snat, &n->snat);
}

/* How readily the port of another flow goes to the CPU's packet. */
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
 * Whether a row's place is free for the new flow n: also where a client comes back from the same port, by another Service, after the end of a flow, and
 * where the backend can't tell the two apart, but the row is not above the rank.
 */
INLINE bool nat_entry_replaceable(const struct nat_entry *t, const struct nat_entry *n, const struct packet *pkt, __u32 rank)
{
	if (nat_entry_expired(t, pkt->proto))
		return true;
	if (!nat_entry_conflicts(t, n))
		return false;
	if (nat_entry_is_request(t, pkt) && t->flags & NAT_ENTRY_CLOSING)
		return true;
	if (t->flags & NAT_ENTRY_CLOSING && !(n->flags & NAT_ENTRY_SNAT))
		return true;
	return rank != PORT_FREE && nat_entry_rank(t, pkt) <= rank;
}

/* Deletes the row with the CPU's key, for its packet's. The index of the packet's own flow stays: it has been written. */
INLINE void nat_entry_replace(struct cpu *c, const struct nat_entry *t)
{
	if (t->flags & NAT_ENTRY_INDEXED && !nat_entry_is_request(t, &c->pkt)) {
		port_key_of(&c->port_key, &t->client, t->client_port, &t->frontend, t->frontend_port, c->nat_key.proto);
		bpf_map_delete_elem(&port_indexes, &c->port_key);
	}
	bpf_map_delete_elem(&nat_entries, &c->nat_key);
}

/* A free place behind the CPU's anchor for the CPU's nat_entry. NAT_ENTRY_SLOTS if there is none, or if another entry conflicts. */
INLINE int nat_entry_slot(struct cpu *c, __u32 rank)
{
	struct nat_entry *t, *n = &c->nat_entry;
	int i, at = NAT_ENTRY_SLOTS;
	bool alike;

	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		alike = t && nat_entry_conflicts(t, n);
		if (t && nat_entry_replaceable(t, n, &c->pkt, rank)) {
			nat_entry_replace(c, t);
			t = NULL;
		}
		if (!t && at == NAT_ENTRY_SLOTS)
			at = i;
		if (alike)
			return t ? NAT_ENTRY_SLOTS : at; /* there is one at most */
	}
	return at;
}

/*
 * Inserts the CPU's nat_entry behind its anchor, in the place of a row that is not above the rank. Of two CPUs that want to look the same to a backend
 * the one with the lower place may. Returns 1 if the row is there. Cost: per flow.
 */
APART int nat_entry_insert(__u32 rank)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t, *n;
	int i, at, err;

	if (!c)
		return 0;
	n = &c->nat_entry;
	at = nat_entry_slot(c, rank);
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

/* Whether only the port of the client changes in the CPU's nat_entry. */
INLINE bool nat_entry_own_address(const struct nat_entry *n)
{
	return addr_equal(&n->snat, &n->client);
}

/*
 * The flow that looks like the CPU's nat_entry to its backend, behind the port; NULL if there is none. Then room says whether there is a place. Cost:
 * per flow, a look-up; eight where the port is free, or shared by flows with other backends.
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
 * Looks at a port for the CPU's nat_entry: whether the flow that has it with the backend lets it go, and how readily. Returns 1 if it is free, or safe
 * to take over. Cost: per flow.
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

/* Looks at the candidates until one is free, or safe to take over. Cost: per flow. */
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

/* Whether a pod has a connection with the backend of the CPU's nat_entry behind the port: nat_crosses, from the other side. */
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

/* Whether a Service's client has a connection with the server of the CPU's packet, which a pod sends, behind the port of the node's. Slow path. */
INLINE bool nat_entry_port_used(struct cpu *c, __u16 port)
{
	struct nat_entry *t;
	int i;

	nat_tuple_node(&c->nat_key, bpf_htons(port), c->pkt.proto);
	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		if (t && t->backend_port == c->pkt.dport && addr_equal(&t->backend, &c->pkt.dst) && addr_equal(&t->snat, &c->snat) &&
		    !nat_entry_expired(t, c->pkt.proto))
			return true;
	}
	return false;
}

APART int nat_entry_port_taken(__u32 port)
{
	struct cpu *c = cpu_this();

	return !c || nat_entry_port_used(c, port);
}

/* Makes the CPU's anchor that of its nat_entry behind the port, and indexes that. Returns 0 if the port can't be taken. Cost: per flow. */
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

/* Puts the CPU's nat_entry in the place of the former connection between the same ends, if its backend is the same; else deletes that. */
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

/* Makes the CPU's nat_entry a row, behind its best candidate where it needs a port. Returns 0 or a drop reason. Cost: per flow. */
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
		/* Once more, where another CPU was faster to the place. */
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

/* A free port for the CPU's nat_entry from min to max, 0 if there is none, or no more may be looked at. */
INLINE int nat_entry_sweep(struct cpu *c, __u32 min, __u32 max)
{
	__u32 start = sweep_start(min, max);
	int port = sweep(&c->port_budget, PORT_SERVICE, start, max);

	return port ? port : sweep(&c->port_budget, PORT_SERVICE, min, start - 1);
}

/* A port of the Services' half, or else of masquerade's, or one of the client with most of the candidates; the rank becomes what its row may have. */
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

/* The same where no candidate is free: behind any other port. Follows nat_entry_claim. Slow path. */
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
