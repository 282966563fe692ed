/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Lookup of NAT entries of Services. The functions don't access the packet's data, so that tc and XDP share them: the
 * input is the parsed packet c->pkt, the result is the rewrite c->to.
 */
#ifndef MYELIN_NAT_ENTRY_H
#define MYELIN_NAT_ENTRY_H

#include "service.h"
#include "../flow/flow.h"
#include "../nat/nat.h"

#define NAT_ENTRY_ATTEMPTS 8 /* candidate ports of a flow */

enum service_side {
	SIDE_CLIENT,
	SIDE_BACKEND,
};

/* Returns the candidate port of the attempt, host byte order. */
INLINE __u16 nat_entry_port(const struct packet *pkt, __u32 attempt)
{
	return port_candidate(pkt, attempt, config.lb_port_min, config.lb_port_max);
}

INLINE void nat_tuple_client(struct nat_entry_key *k, const struct addr *client, __be16 port, __u8 proto)
{
	k->addr = *client;
	k->port = port;
	k->proto = proto;
	k->slot = 0;
}

/* One tuple serves both families: the reply to a client may come in the other one. */
INLINE void nat_tuple_node(struct nat_entry_key *k, __be16 port, __u8 proto)
{
	__builtin_memset(&k->addr, 0, sizeof(k->addr));
	k->port = port;
	k->proto = proto;
	k->slot = 0;
}

/*
 * Sets c->nat_key to the tuple of the packet's flow with a NAT port: of the client's own address, if only the port
 * changes (own), or of the node.
 */
INLINE void nat_tuple_port(struct cpu *c, const struct packet *pkt, __u16 port, bool own)
{
	if (own)
		nat_tuple_client(&c->nat_key, &pkt->src, bpf_htons(port), pkt->proto);
	else
		nat_tuple_node(&c->nat_key, bpf_htons(port), pkt->proto);
}

INLINE bool nat_entry_is_request(const struct nat_entry *t, const struct packet *pkt)
{
	return t->client_port == pkt->sport && t->frontend_port == pkt->dport && addr_equal(&t->client, &pkt->src) &&
	       addr_equal(&t->frontend, &pkt->dst);
}

INLINE bool nat_entry_is_reply(const struct nat_entry *t, const struct packet *pkt)
{
	return t->backend_port == pkt->sport && addr_equal(&t->backend, &pkt->src) &&
	       (!(t->flags & NAT_ENTRY_SNAT) || addr_equal(&t->snat, &pkt->dst));
}

/*
 * Whether the TCP handshake is complete: the client has acknowledged the backend's reply. Replies by DSR don't pass
 * this node.
 */
INLINE bool nat_entry_established(const struct nat_entry *t)
{
	return t->flags & (NAT_ENTRY_REPLIED | NAT_ENTRY_DSR) && t->tcp_flags[SIDE_CLIENT] & TCP_ACK;
}

/*
 * Whether the backend has no TIME-WAIT of the closed connection: the client sent the first FIN, or the connection was
 * reset.
 */
INLINE bool nat_entry_clean(const struct nat_entry *t)
{
	return t->flags & NAT_ENTRY_CLIENT_FIN || (t->tcp_flags[SIDE_CLIENT] | t->tcp_flags[SIDE_BACKEND]) & TCP_RST;
}

/*
 * Whether FIN from both sides or RST was seen. The flag alone is not reliable: it is lost if two CPUs set flags at the
 * same time.
 */
INLINE bool nat_entry_closing(const struct nat_entry *t)
{
	return t->flags & NAT_ENTRY_CLOSING || t->tcp_flags[SIDE_CLIENT] & t->tcp_flags[SIDE_BACKEND] & TCP_FIN;
}

INLINE __u32 nat_entry_seconds(const struct nat_entry *t, __u8 proto)
{
	if (nat_entry_closing(t))
		return t->flags & NAT_ENTRY_SNAT && !nat_entry_clean(t) ? FLOW_TIME_WAIT_SECONDS : FLOW_CLOSING_SECONDS;
	if (proto == IPPROTO_TCP)
		return nat_entry_established(t) ? FLOW_TCP_SECONDS : FLOW_SYN_SECONDS;
	return FLOW_OTHER_SECONDS;
}

INLINE bool nat_entry_expired(const struct nat_entry *t, __u8 proto)
{
	return clock_before(t->seen + nat_entry_seconds(t, proto) * config.hz, clock_now());
}

/* Counts a packet, and updates the flow's state. Cost: per packet. */
INLINE void nat_entry_count(struct nat_entry *t, const struct packet *pkt, int side, __u32 length)
{
	__u32 now = clock_now();

	__sync_fetch_and_add(&t->packets[side], 1);
	__sync_fetch_and_add(&t->bytes[side], length);
	if (t->seen != now)
		t->seen = now;
	if (side == SIDE_BACKEND && !(t->flags & NAT_ENTRY_REPLIED))
		t->flags |= NAT_ENTRY_REPLIED;
	if (likely(!(pkt->tcp_flags & ~t->tcp_flags[side])))
		return;
	t->tcp_flags[side] |= pkt->tcp_flags;
	if (side == SIDE_CLIENT && pkt->tcp_flags & TCP_FIN) {
		t->timestamp = pkt->timestamp;
		if (!(t->tcp_flags[SIDE_BACKEND] & TCP_FIN))
			t->flags |= NAT_ENTRY_CLIENT_FIN;
	}
	/* This node sees only one direction of a flow with DSR. */
	if (pkt->tcp_flags & TCP_RST || t->tcp_flags[0] & t->tcp_flags[1] & TCP_FIN ||
	    (t->flags & NAT_ENTRY_DSR && pkt->tcp_flags & TCP_FIN))
		t->flags |= NAT_ENTRY_CLOSING;
}

/*
 * Sets the outer destination: the backend's node, or the backend itself if it is outside the cluster. Such a backend
 * gets the client's packet unchanged; returns false then.
 */
INLINE bool node_of(struct cpu *c, const struct nat_entry *t)
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

/* Sets c->to to the rewrite of a request. */
INLINE void rewrite_request(struct cpu *c, const struct nat_entry *t)
{
	bool snat = t->flags & NAT_ENTRY_SNAT;

	c->to.src = snat ? t->snat : t->client;
	c->to.sport = snat ? c->nat_key.port : t->client_port;
	c->to.dst = t->backend;
	c->to.dport = t->backend_port;
	c->to.encap = config.lb_dispatch && !config.tunnel && t->flags & NAT_ENTRY_DSR;
	if (c->to.encap && !node_of(c, t))
		return;
	c->to.option = t->flags & NAT_ENTRY_DSR && (c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt));
}

/* Sets c->to to the rewrite of a reply. */
INLINE void rewrite_answer(struct cpu *c, const struct nat_entry *t)
{
	c->to.src = t->frontend;
	c->to.sport = t->frontend_port;
	c->to.dst = t->client;
	c->to.dport = t->client_port;
	c->to.option = false;
	c->to.encap = false;
}

/*
 * Looks up the entry of a request under one of the two usual tuples: the node's with the first candidate port, or the
 * client's.
 */
INLINE struct nat_entry *nat_entry_at(struct cpu *c, const struct packet *pkt, bool node)
{
	struct nat_entry *t;

	nat_tuple_port(c, pkt, node ? nat_entry_port(pkt, 0) : bpf_ntohs(pkt->sport), !node);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	return t && nat_entry_is_request(t, pkt) ? t : NULL;
}

/*
 * Finds the entry of a request under one of the two usual tuples, where nearly all entries are, and sets c->nat_key to
 * its key. Returns NULL if there is none. The tuple that matched last on this CPU is tried first: most nodes SNAT
 * either most flows or few. Cost: per packet.
 */
INLINE struct nat_entry *nat_entry_request(struct cpu *c, const struct packet *pkt)
{
	bool node = c->node_anchor_first;
	struct nat_entry *t = nat_entry_at(c, pkt, node);

	if (likely(t))
		return t;
	t = nat_entry_at(c, pkt, !node);
	if (t)
		c->node_anchor_first = !node;
	return t;
}

/*
 * Searches the slots of the tuple c->nat_key for the entry of a packet from the given side. Returns 1 if c->nat_key is
 * its key.
 */
INLINE int nat_entry_walk(struct cpu *c, const struct packet *pkt, int side)
{
	struct nat_entry *t;
	__u32 i;

	for (i = 0; i < NAT_ENTRY_SLOTS; i++) {
		c->nat_key.slot = i;
		t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
		if (t && (side == SIDE_CLIENT ? nat_entry_is_request(t, pkt) : nat_entry_is_reply(t, pkt)))
			return 1;
	}
	return 0;
}

/*
 * Moves the entry with the key c->nat_key to the first slot, if that is free: lookups for replies stop at a free first
 * slot.
 */
INLINE void nat_entry_compact(struct cpu *c)
{
	struct nat_entry *t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	__u8 was = c->nat_key.slot;
	int err;

	if (!t || !was)
		return;
	c->nat_entry = *t;
	c->nat_key.slot = 0;
	err = bpf_map_update_elem(&nat_entries, &c->nat_key, &c->nat_entry, BPF_NOEXIST);
	c->nat_key.slot = was;
	if (err)
		return;
	bpf_map_delete_elem(&nat_entries, &c->nat_key);
	c->nat_key.slot = 0;
}

/*
 * Searches all slots in which the entry of a request may be: of c->about if about is set, of c->pkt otherwise. Returns
 * 1 if c->nat_key is the key of the entry. Cost: per flow.
 */
APART int nat_entry_search(__u32 about)
{
	struct cpu *c = cpu_this();
	const struct packet *pkt;
	struct port_index *at;

	if (!c)
		return 0;
	pkt = about ? &c->about : &c->pkt;
	at = port_index_find(c, pkt);
	if (at) {
		nat_tuple_port(c, pkt, at->port, at->flags & PORT_INDEX_OWN);
		if (nat_entry_walk(c, pkt, SIDE_CLIENT))
			return 1;
	}
	nat_tuple_client(&c->nat_key, &pkt->src, pkt->sport, pkt->proto);
	if (nat_entry_walk(c, pkt, SIDE_CLIENT)) {
		nat_entry_compact(c);
		return 1;
	}
	nat_tuple_port(c, pkt, nat_entry_port(pkt, 0), false);
	return nat_entry_walk(c, pkt, SIDE_CLIENT);
}

/*
 * Searches all slots of the tuple c->nat_key for the entry of a packet from the given side: of c->about if about is
 * set, of c->pkt otherwise. Returns 1 if c->nat_key is the entry's key.
 */
APART int nat_entry_walk_slots(__u32 side, __u32 about)
{
	struct cpu *c = cpu_this();

	return c && nat_entry_walk(c, about ? &c->about : &c->pkt, side);
}

/*
 * Finds the entry of a packet from the given side under the tuple c->nat_key. A free first slot means that there is
 * none. Cost: per packet.
 */
INLINE struct nat_entry *nat_entry_find(struct cpu *c, const struct packet *pkt, int side, bool about)
{
	struct nat_entry *t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);

	if (!t || likely(side == SIDE_CLIENT ? nat_entry_is_request(t, pkt) : nat_entry_is_reply(t, pkt)))
		return t;
	return nat_entry_walk_slots(side, about) ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : NULL;
}

/*
 * Finds the entry of a request by the index of ports, and sets c->nat_key to its key. Cost: per packet of a flow with
 * another port than its first candidate.
 */
INLINE struct nat_entry *nat_entry_indexed(struct cpu *c)
{
	struct port_index *at = port_index_find(c, &c->pkt);

	if (!at)
		return NULL;
	nat_tuple_port(c, &c->pkt, at->port, at->flags & PORT_INDEX_OWN);
	return nat_entry_find(c, &c->pkt, SIDE_CLIENT, false);
}

/* Finds the entry of a reply to the node's own address by its port. Cost: per packet. */
INLINE struct nat_entry *nat_entry_reply_node(struct cpu *c, const struct packet *pkt, bool about)
{
	struct nat_entry *t;

	nat_tuple_node(&c->nat_key, pkt->dport, pkt->proto);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (likely(t && nat_entry_is_reply(t, pkt)))
		return t;
	return nat_entry_walk_slots(SIDE_BACKEND, about) ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : NULL;
}

/*
 * Finds the entry of a reply to the client's own address. Each request moves its entry to the first slot if that is
 * free. Cost: per packet.
 */
INLINE struct nat_entry *nat_entry_reply_client(struct cpu *c, const struct packet *pkt, bool about)
{
	nat_tuple_client(&c->nat_key, &pkt->dst, pkt->dport, pkt->proto);
	return nat_entry_find(c, pkt, SIDE_BACKEND, about);
}

#endif
