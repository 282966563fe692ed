/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finding the row of a flow that packets are translated for. Nothing here touches a packet, so that tc and XDP share it: what they look at is
 * the CPU's parsed packet, and what they find is the CPU's rewrite.
 */
#ifndef MYELIN_TRANSLATION_H
#define MYELIN_TRANSLATION_H

#include "service.h"
#include "../flow/flow.h"
#include "../nat/nat.h"

#define TRANSLATION_ATTEMPTS 8 /* candidates of a flow for its port */

enum translation_side {
	SIDE_CLIENT,
	SIDE_BACKEND,
};

/* The flow's candidate for the attempt, host byte order. */
INLINE __u16 translation_port(const struct packet *pkt, __u32 attempt)
{
	return port_candidate(pkt, attempt, config.lb_port_min, config.lb_port_max);
}

INLINE void translation_anchor_client(struct translation_key *k, const struct addr *client, __be16 port, __u8 proto)
{
	k->anchor = *client;
	k->port = port;
	k->proto = proto;
	k->place = 0;
}

/* One for both families: the answer to a client may come in the other one. */
INLINE void translation_anchor_node(struct translation_key *k, __be16 port, __u8 proto)
{
	__builtin_memset(&k->anchor, 0, sizeof(k->anchor));
	k->port = port;
	k->proto = proto;
	k->place = 0;
}

/* The CPU's anchor for its packet's flow behind a port: of the client, where only the port changes (own), or of the node. */
INLINE void translation_anchor_port(struct cpu *c, const struct packet *pkt, __u16 port, bool own)
{
	if (own)
		translation_anchor_client(&c->place, &pkt->src, bpf_htons(port), pkt->proto);
	else
		translation_anchor_node(&c->place, bpf_htons(port), pkt->proto);
}

INLINE bool translation_asks(const struct translation *t, const struct packet *pkt)
{
	return t->client_port == pkt->sport && t->frontend_port == pkt->dport && addr_equal(&t->client, &pkt->src) && addr_equal(&t->frontend, &pkt->dst);
}

INLINE bool translation_answers(const struct translation *t, const struct packet *pkt)
{
	return t->backend_port == pkt->sport && addr_equal(&t->backend, &pkt->src) && (!(t->flags & TRANSLATION_SNAT) || addr_equal(&t->snat, &pkt->dst));
}

/* Whether the handshake of TCP is complete: the client has acknowledged what the backend answered. Of direct answers this node sees nothing. */
INLINE bool translation_established(const struct translation *t)
{
	return t->flags & (TRANSLATION_REPLIED | TRANSLATION_DSR) && t->tcp_flags[SIDE_CLIENT] & TCP_ACK;
}

/* Whether the backend keeps nothing of a connection that ended: its client was the first to say FIN, or it was reset. */
INLINE bool translation_clean(const struct translation *t)
{
	return t->flags & TRANSLATION_CLIENT_FIN || (t->tcp_flags[SIDE_CLIENT] | t->tcp_flags[SIDE_BACKEND]) & TCP_RST;
}

/* Whether FINs from both or a RST were seen. The flag alone may be lost, where two CPUs set others at the same time. */
INLINE bool translation_closing(const struct translation *t)
{
	return t->flags & TRANSLATION_CLOSING || t->tcp_flags[SIDE_CLIENT] & t->tcp_flags[SIDE_BACKEND] & TCP_FIN;
}

INLINE __u32 translation_seconds(const struct translation *t, __u8 proto)
{
	if (translation_closing(t))
		return t->flags & TRANSLATION_SNAT && !translation_clean(t) ? FLOW_TIME_WAIT_SECONDS : FLOW_CLOSING_SECONDS;
	if (proto == IPPROTO_TCP)
		return translation_established(t) ? FLOW_TCP_SECONDS : FLOW_SYN_SECONDS;
	return FLOW_OTHER_SECONDS;
}

INLINE bool translation_expired(const struct translation *t, __u8 proto)
{
	return clock_before(t->seen + translation_seconds(t, proto) * config.hz, clock_now());
}

/* Adds a packet. Cost: per packet. */
INLINE void translation_count(struct translation *t, const struct packet *pkt, int side, __u32 length)
{
	__u32 now = clock_now();

	__sync_fetch_and_add(&t->packets[side], 1);
	__sync_fetch_and_add(&t->bytes[side], length);
	if (t->seen != now)
		t->seen = now;
	if (side == SIDE_BACKEND && !(t->flags & TRANSLATION_REPLIED))
		t->flags |= TRANSLATION_REPLIED;
	if (likely(!(pkt->tcp_flags & ~t->tcp_flags[side])))
		return;
	t->tcp_flags[side] |= pkt->tcp_flags;
	if (side == SIDE_CLIENT && pkt->tcp_flags & TCP_FIN) {
		t->timestamp = pkt->timestamp;
		if (!(t->tcp_flags[SIDE_BACKEND] & TCP_FIN))
			t->flags |= TRANSLATION_CLIENT_FIN;
	}
	/* Of a flow with direct answers, one direction is all that a node sees. */
	if (pkt->tcp_flags & TCP_RST || t->tcp_flags[0] & t->tcp_flags[1] & TCP_FIN || (t->flags & TRANSLATION_DSR && pkt->tcp_flags & TCP_FIN))
		t->flags |= TRANSLATION_CLOSING;
}

/* Whom the packet around the CPU's is for: the backend's node; or the backend itself, where that is none of our cluster's, and gets what the client sent.
 * False then. */
INLINE bool node_of(struct cpu *c, const struct translation *t)
{
	struct prefix *prefix = prefix_find(&t->backend);

	if (!prefix) {
		c->to.via = t->backend;
		c->to.dst = t->frontend;
		c->to.dport = t->frontend_port;
		c->to.option = false;
		return false;
	}
	c->to.via = prefix->via;
	if (addr_is_zero(&prefix->via) || addr_is4(&prefix->via) != addr_is4(&t->backend))
		c->to.encap = false;
	return true;
}

/* What the client's packet becomes. */
INLINE void rewrite_request(struct cpu *c, const struct translation *t)
{
	bool snat = t->flags & TRANSLATION_SNAT;

	c->to.src = snat ? t->snat : t->client;
	c->to.sport = snat ? c->place.port : t->client_port;
	c->to.dst = t->backend;
	c->to.dport = t->backend_port;
	c->to.encap = config.lb_dispatch && !config.tunnel && t->flags & TRANSLATION_DSR;
	if (c->to.encap && !node_of(c, t))
		return;
	c->to.option = t->flags & TRANSLATION_DSR && (c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt));
}

/* What the backend's packet becomes. */
INLINE void rewrite_answer(struct cpu *c, const struct translation *t)
{
	c->to.src = t->frontend;
	c->to.sport = t->frontend_port;
	c->to.dst = t->client;
	c->to.dport = t->client_port;
	c->to.option = false;
	c->to.encap = false;
}

/* Looks up a client's packet behind one of its two usual anchors: the node's, with its first candidate port, or the client's. */
INLINE struct translation *translation_at(struct cpu *c, const struct packet *pkt, bool node)
{
	struct translation *t;

	translation_anchor_port(c, pkt, node ? translation_port(pkt, 0) : bpf_ntohs(pkt->sport), !node);
	t = bpf_map_lookup_elem(&translations, &c->place);
	return t && translation_asks(t, pkt) ? t : NULL;
}

/*
 * The entry of a client's packet, where nearly all are; its key is the CPU's. NULL if it is not there. The anchor behind which the CPU found the last one
 * comes first: most traffic of a node is SNATed, or most is not. Cost: per packet.
 */
INLINE struct translation *translation_request(struct cpu *c, const struct packet *pkt)
{
	bool node = c->node_anchor_first;
	struct translation *t = translation_at(c, pkt, node);

	if (likely(t))
		return t;
	t = translation_at(c, pkt, !node);
	if (t)
		c->node_anchor_first = !node;
	return t;
}

/* Looks in the places behind the CPU's anchor for the row of the side's packet. Returns 1 if the CPU's key is that row's. */
INLINE int translation_walk(struct cpu *c, const struct packet *pkt, int side)
{
	struct translation *t;
	__u32 i;

	for (i = 0; i < TRANSLATION_PLACES; i++) {
		c->place.place = i;
		t = bpf_map_lookup_elem(&translations, &c->place);
		if (t && (side == SIDE_CLIENT ? translation_asks(t, pkt) : translation_answers(t, pkt)))
			return 1;
	}
	return 0;
}

/* Moves the row with the CPU's key to the first place, if that is free, since answers look no further then. */
INLINE void translation_lower(struct cpu *c)
{
	struct translation *t = bpf_map_lookup_elem(&translations, &c->place);
	__u8 was = c->place.place;
	int err;

	if (!t || !was)
		return;
	c->translation = *t;
	c->place.place = 0;
	err = bpf_map_update_elem(&translations, &c->place, &c->translation, BPF_NOEXIST);
	c->place.place = was;
	if (err)
		return;
	bpf_map_delete_elem(&translations, &c->place);
	c->place.place = 0;
}

/* Looks in all places where the row of a client's packet may be: the CPU's, or the one that its ICMP error is about. Returns 1 if the CPU's key is that
 * row's. Cost: per flow. */
APART int translation_search(__u32 about)
{
	struct cpu *c = cpu_this();
	const struct packet *pkt;
	struct port_index *at;

	if (!c)
		return 0;
	pkt = about ? &c->about : &c->pkt;
	at = port_index_find(c, pkt);
	if (at) {
		translation_anchor_port(c, pkt, at->port, at->flags & PORT_INDEX_OWN);
		if (translation_walk(c, pkt, SIDE_CLIENT))
			return 1;
	}
	translation_anchor_client(&c->place, &pkt->src, pkt->sport, pkt->proto);
	if (translation_walk(c, pkt, SIDE_CLIENT)) {
		translation_lower(c);
		return 1;
	}
	translation_anchor_port(c, pkt, translation_port(pkt, 0), false);
	return translation_walk(c, pkt, SIDE_CLIENT);
}

/* Looks in all places behind the CPU's anchor for the row of the side's packet: the CPU's, or the one that its ICMP error is about. Returns 1 if the CPU's
 * key is that row's. */
APART int translation_walk_apart(__u32 side, __u32 about)
{
	struct cpu *c = cpu_this();

	return c && translation_walk(c, about ? &c->about : &c->pkt, side);
}

/* The row of the side's packet behind the CPU's anchor. Where the first place is free, so are the others for it. Cost: per packet. */
INLINE struct translation *translation_behind(struct cpu *c, const struct packet *pkt, int side, bool about)
{
	struct translation *t = bpf_map_lookup_elem(&translations, &c->place);

	if (!t || likely(side == SIDE_CLIENT ? translation_asks(t, pkt) : translation_answers(t, pkt)))
		return t;
	return translation_walk_apart(side, about) ? bpf_map_lookup_elem(&translations, &c->place) : NULL;
}

/* The row of the CPU's packet, which a client sends, by the index of ports; its key is the CPU's. Cost: per packet of a flow without its first candidate. */
INLINE struct translation *translation_indexed(struct cpu *c)
{
	struct port_index *at = port_index_find(c, &c->pkt);

	if (!at)
		return NULL;
	translation_anchor_port(c, &c->pkt, at->port, at->flags & PORT_INDEX_OWN);
	return translation_behind(c, &c->pkt, SIDE_CLIENT, false);
}

/* The row of an answer that is for the node's own address, by its port. Cost: per packet. */
INLINE struct translation *translation_answer_node(struct cpu *c, const struct packet *pkt, bool about)
{
	struct translation *t;

	translation_anchor_node(&c->place, pkt->dport, pkt->proto);
	t = bpf_map_lookup_elem(&translations, &c->place);
	if (likely(t && translation_answers(t, pkt)))
		return t;
	return translation_walk_apart(SIDE_BACKEND, about) ? bpf_map_lookup_elem(&translations, &c->place) : NULL;
}

/* The row of an answer that is for the client's own address: a request moves to the first place, if that is free. Cost: per packet. */
INLINE struct translation *translation_answer_client(struct cpu *c, const struct packet *pkt, bool about)
{
	translation_anchor_client(&c->place, &pkt->dst, pkt->dport, pkt->proto);
	return translation_behind(c, pkt, SIDE_BACKEND, about);
}

#endif
