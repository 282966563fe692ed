/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Making the row of a flow that packets are translated for, with a port of the node's where the backend sees that. As in translation.h, tc and XDP share it. */
#ifndef MYELIN_CLAIM_H
#define MYELIN_CLAIM_H

#include "translation.h"

/* Whether two flows behind one anchor look the same to a backend. */
INLINE bool translation_alike(const struct translation *t, const struct translation *n)
{
	return t->backend_port == n->backend_port && addr_equal(&t->backend, &n->backend) && addr_equal(&t->snat, &n->snat);
}

/* How readily the port of another flow goes to the CPU's packet. */
INLINE __u32 translation_rank(const struct translation *t, const struct packet *pkt)
{
	bool answered = t->flags & TRANSLATION_REPLIED && !port_exchanged(t->packets[0], t->packets[1], t->seen);
	bool proven = pkt->proto == IPPROTO_TCP ? translation_established(t) : answered;

	if (translation_expired(t, pkt->proto))
		return PORT_FREE;
	if (!proven && !flow_waited(t->created))
		return PORT_USED; /* as in nat_rank */
	if (translation_closing(t))
		return port_rank_closed(pkt, t->seen, t->timestamp, translation_clean(t));
	return proven ? PORT_USED : PORT_YIELDS;
}

/*
 * Whether a row's place is free for the new flow n: also where a client comes back from the same port, by another Service, after the end of a flow, and
 * where the backend can't tell the two apart, but the row is not above the rank.
 */
INLINE bool translation_over(const struct translation *t, const struct translation *n, const struct packet *pkt, __u32 rank)
{
	if (translation_expired(t, pkt->proto))
		return true;
	if (!translation_alike(t, n))
		return false;
	if (translation_asks(t, pkt) && t->flags & TRANSLATION_CLOSING)
		return true;
	if (t->flags & TRANSLATION_CLOSING && !(n->flags & TRANSLATION_SNAT))
		return true;
	return rank != PORT_FREE && translation_rank(t, pkt) <= rank;
}

/* Deletes the row with the CPU's key, for its packet's. The index of the packet's own flow stays: it has been written. */
INLINE void translation_replace(struct cpu *c, const struct translation *t)
{
	if (t->flags & TRANSLATION_INDEXED && !translation_asks(t, &c->pkt)) {
		port_key_of(&c->port_key, &t->client, t->client_port, &t->frontend, t->frontend_port, c->place.proto);
		bpf_map_delete_elem(&port_indexes, &c->port_key);
	}
	bpf_map_delete_elem(&translations, &c->place);
}

/* A free place behind the CPU's anchor for the CPU's translation. -1 if there is none, or if a flow behind it looks the same to the backend. */
INLINE int translation_place(struct cpu *c, __u32 rank)
{
	struct translation *t, *n = &c->translation;
	int i, at = -1;
	bool alike;

	for (i = 0; i < TRANSLATION_PLACES; i++) {
		c->place.place = i;
		t = bpf_map_lookup_elem(&translations, &c->place);
		alike = t && translation_alike(t, n);
		if (t && translation_over(t, n, &c->pkt, rank)) {
			translation_replace(c, t);
			t = NULL;
		}
		if (!t && at < 0)
			at = i;
		if (alike)
			return t ? -1 : at; /* there is one at most */
	}
	return at;
}

/*
 * Inserts the CPU's translation behind its anchor, in the place of a row that is not above the rank. Of two CPUs that want to look the same to a backend
 * the one with the lower place may. Returns 1 if the row is there. Cost: per flow.
 */
APART int translation_insert(__u32 rank)
{
	struct cpu *c = cpu_this();
	struct translation *t, *n;
	int i, at, err;

	if (!c)
		return 0;
	n = &c->translation;
	at = translation_place(c, rank);
	if (at < 0)
		return 0;
	c->place.place = at;
	err = bpf_map_update_elem(&translations, &c->place, n, BPF_NOEXIST);
	if (err)
		return 0;
	for (i = 0; i < TRANSLATION_PLACES - 1; i++) {
		if (i >= at)
			break;
		c->place.place = i;
		t = bpf_map_lookup_elem(&translations, &c->place);
		if (t && translation_alike(t, n)) {
			c->place.place = at;
			bpf_map_delete_elem(&translations, &c->place);
			return 0;
		}
	}
	c->place.place = at;
	return 1;
}

/* Whether only the port of the client changes in the CPU's translation. */
INLINE bool translation_own(const struct translation *n)
{
	return addr_equal(&n->snat, &n->client);
}

/*
 * The flow that looks like the CPU's translation to its backend, behind the port; NULL if there is none. Then room says whether there is a place. Cost:
 * per flow, a look-up; eight where the port is free, or shared by flows with other backends.
 */
INLINE struct translation *translation_rival(struct cpu *c, __u16 port, bool *room)
{
	const struct translation *n = &c->translation;
	struct translation *t;
	int i;

	*room = false;
	translation_anchor_port(c, &c->pkt, port, translation_own(n));
	for (i = 0; i < TRANSLATION_PLACES; i++) {
		c->place.place = i;
		t = bpf_map_lookup_elem(&translations, &c->place);
		if (!t || translation_expired(t, c->pkt.proto))
			*room = true;
		else if (translation_alike(t, n))
			return t;
	}
	return NULL;
}

/*
 * Looks at a port for the CPU's translation: whether the flow that has it with the backend lets it go, and how readily. Returns 1 if it is free, or safe
 * to take over. Cost: per flow.
 */
APART int translation_offer(__u32 port)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	struct translation *t;
	__u32 idle;
	bool room;

	if (!c)
		return 0;
	s = port_search(c);
	t = translation_rival(c, port, &room);
	if (t) {
		idle = clock_now() - t->seen;
		port_offer(s, port, translation_rank(t, &c->pkt), idle);
		port_count(s, port, port_holder(&t->client), idle);
	} else if (room) {
		port_offer(s, port, PORT_FREE, -1);
	}
	return s->rank <= PORT_NEWER;
}

/* Looks at the candidates until one is free, or safe to take over. Cost: per flow. */
APART int translation_scan(void)
{
	struct cpu *c = cpu_this();
	int i;

	if (!c)
		return 0;
	port_search_reset(port_search(c));
	for (i = 0; i < TRANSLATION_ATTEMPTS; i++) {
		if (translation_offer(translation_port(&c->pkt, i)))
			break;
	}
	return 0;
}

/* Whether a pod has a connection with the backend of the CPU's translation behind the port: nat_crosses, from the other side. */
INLINE bool translation_crosses(struct cpu *c, __u16 port)
{
	const struct translation *n = &c->translation;
	struct flow *f;

	if (!port_crosses(PORT_SERVICE, port) || !(config.masquerade4 || config.masquerade6))
		return false;
	flow_key_of(&c->key, &n->snat, bpf_htons(port), &n->backend, n->backend_port, c->pkt.proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	return f && f->flags & FLOW_NAT && !flow_expired(f, c->pkt.proto);
}

/* Whether a Service's client has a connection with the server of the CPU's packet, which a pod sends, behind the port of the node's. Slow path. */
INLINE bool translation_met(struct cpu *c, __u16 port)
{
	struct translation *t;
	int i;

	translation_anchor_node(&c->place, bpf_htons(port), c->pkt.proto);
	for (i = 0; i < TRANSLATION_PLACES; i++) {
		c->place.place = i;
		t = bpf_map_lookup_elem(&translations, &c->place);
		if (t && t->backend_port == c->pkt.dport && addr_equal(&t->backend, &c->pkt.dst) && addr_equal(&t->snat, &c->snat) &&
		    !translation_expired(t, c->pkt.proto))
			return true;
	}
	return false;
}

APART int translation_meets(__u32 port)
{
	struct cpu *c = cpu_this();

	return !c || translation_met(c, port);
}

/* Makes the CPU's anchor that of its translation behind the port, and indexes that. Returns 0 if the port can't be taken. Cost: per flow. */
APART int translation_prepare(__u32 number)
{
	struct cpu *c = cpu_this();
	struct translation *n;
	__u16 port = number;
	bool own;

	if (!c)
		return 0;
	n = &c->translation;
	own = translation_own(n);
	if (translation_crosses(c, port))
		return 0;
	n->flags &= ~TRANSLATION_INDEXED;
	if (own || port != translation_port(&c->pkt, 0)) {
		if (!port_index_put(c, &c->pkt, &n->snat, port, PORT_INDEX_SERVICE | (own ? PORT_INDEX_OWN : 0)))
			return 0;
		n->flags |= TRANSLATION_INDEXED;
	}
	translation_anchor_port(c, &c->pkt, port, own);
	return 1;
}

/* Puts the CPU's translation in the place of the former connection between the same ends, if its backend is the same; else deletes that. */
INLINE bool translation_continue(struct cpu *c)
{
	const struct translation *n = &c->translation;
	bool same = n->flags & TRANSLATION_SNAT && n->backend_id == c->again_backend;

	c->again_backend = 0;
	if (same && translation_prepare(bpf_ntohs(c->again.port)) && translation_insert(PORT_FREE))
		return true;
	bpf_map_delete_elem(&translations, &c->again);
	return false;
}

/* Makes the CPU's translation a row, behind its best candidate where it needs a port. Returns 0 or a drop reason. Cost: per flow. */
APART int translation_claim(void)
{
	struct cpu *c = cpu_this();
	struct translation *n;
	struct port_search *s;
	int i;

	if (!c)
		return DROP_MAP_FULL;
	n = &c->translation;
	if (c->again_backend && translation_continue(c))
		return 0;
	if (!(n->flags & TRANSLATION_SNAT)) {
		translation_anchor_client(&c->place, &n->client, n->client_port, c->pkt.proto);
		/* Once more, where another CPU was faster to the place. */
		return translation_insert(PORT_FREE) || translation_insert(PORT_FREE) ? 0 : DROP_NAT_NO_PORT;
	}
	s = port_search(c);
	s->skip = 0;
	for (i = 0; i < NAT_CLAIMS; i++) {
		translation_scan();
		if (s->rank == PORT_USED)
			break;
		if (translation_prepare(s->port) && translation_insert(s->rank))
			return 0;
		s->skip = s->port;
	}
	return DROP_NAT_NO_PORT;
}

/* A free port for the CPU's translation from min to max, 0 if there is none, or no more may be looked at. */
INLINE int translation_sweep(struct cpu *c, __u32 min, __u32 max)
{
	__u32 start = sweep_start(min, max);
	int port = sweep(&c->port_budget, PORT_SERVICE, start, max);

	return port ? port : sweep(&c->port_budget, PORT_SERVICE, min, start - 1);
}

/* A port of the Services' half, or else of masquerade's, or one of the client with most of the candidates; the rank becomes what its row may have. */
INLINE int translation_any(struct cpu *c)
{
	struct port_search *s = port_search(c);
	int port = translation_sweep(c, config.lb_port_min, config.lb_port_max);

	s->rank = PORT_CLOSED;
	if (port || !config.nat_port_max)
		return port;
	port = translation_sweep(c, config.nat_port_min, config.nat_port_max);
	if (port)
		ports_borrowed = true;
	else
		s->rank = PORT_USED;
	return port ? port : port_reclaim(s, &c->translation.client, TRANSLATION_ATTEMPTS);
}

/* The same where no candidate is free: behind any other port. Follows translation_claim. Slow path. */
APART int translation_claim_any(void)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	int i, port;

	if (!c)
		return DROP_MAP_FULL;
	s = port_search(c);
	for (i = 0; i < NAT_CLAIMS; i++) {
		port = translation_any(c);
		if (!port)
			break;
		if (translation_prepare(port) && translation_insert(s->rank))
			return 0;
		s->skip = port;
	}
	return DROP_NAT_NO_PORT;
}

#endif
