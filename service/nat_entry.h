/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finding the row of a flow that packets are translated for. Nothing here touches a packet, so that tc and XDP share it: what they look at is
 * the CPU's parsed packet, and what they find is the CPU's rewrite.
 */
#ifndef MYELIN_NAT_ENTRY_H
#define MYELIN_NAT_ENTRY_H

#include "service.h"
#include "../flow/flow.h"
#include "../nat/nat.h"

#define NAT_ENTRY_ATTEMPTS 8 /* candidates of a flow for its port */

enum service_side {
	SIDE_CLIENT,
	SIDE_BACKEND,
};

/* The flow's candidate for the attempt, host byte order. */
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

/* One for both families: the answer to a client may come in the other one. */
INLINE void nat_tuple_node(struct nat_entry_key *k, __be16 port, __u8 proto)
{
	__builtin_memset(&k->addr, 0, sizeof(k->addr));
	k->port = port;
	k->proto = proto;
	k->slot = 0;
}

/* The CPU's anchor for its packet's flow behind a port: of the client, where only the port changes (own), or of the node. */
INLINE void nat_tuple_port(struct cpu *c, const struct packet *pkt, __u16 port, bool own)
{
	if (own)
		nat_tuple_client(&c->nat_key, &pkt->src, bpf_htons(port), pkt->proto);
	else
		nat_tuple_node(&c->nat_key, bpf_htons(port), pkt->proto);
}

INLINE bool nat_entry_is_request(const struct nat_entry *t, const struct packet *pkt)
{
	return t->client_port == pkt->sport && t->frontend_port == pkt->dport && addr_equal(&t->client, &pkt->src) && addr_equal(&t->frontend, &pkt->dst);
}

INLINE bool nat_entry_is_reply(const struct nat_entry *t, const struct packet *pkt)
{
	return t->backend_port == pkt->sport && addr_equal(&t->backend, &pkt->src) && (!(t->flags & NAT_ENTRY_SNAT) || addr_equal(&t->snat, &pkt->dst));
}

/* Whether the handshake of TCP is complete: the client has acknowledged what the backend answered. Of direct answers this node sees nothing. */
INLINE bool nat_entry_established(const struct nat_entry *t)
{
	return t->flags & (NAT_ENTRY_REPLIED | NAT_ENTRY_DSR) && t->tcp_flags[SIDE_CLIENT] & TCP_ACK;
}

/* Whether the backend keeps nothing of a connection that ended: its client was the first to say FIN, or it was reset. */
INLINE bool nat_entry_clean(const struct nat_entry *t)
{
	return t->flags & NAT_ENTRY_CLIENT_FIN || (t->tcp_flags[SIDE_CLIENT] | t->tcp_flags[SIDE_BACKEND]) & TCP_RST;
}

/* Whether FINs from both or a RST were seen. The flag alone may be lost, where two CPUs set others at the same time. */
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

/* Adds a packet. Cost: per packet. */
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
	/* Of a flow with direct answers, one direction is all that a node sees. */
	if (pkt->tcp_flags & TCP_RST || t->tcp_flags[0] & t->tcp_flags[1] & TCP_FIN || (t->flags & NAT_ENTRY_DSR && pkt->tcp_flags & TCP_FIN))
		t->flags |= NAT_ENTRY_CLOSING;
}

/* Whom the packet around the CPU's is for: the backend's node; or the backend itself, where that is none of our cluster's, and gets what the client sent.
 * False then. */
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

/* What the client's packet becomes. */
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

/* What the backend's packet becomes. */
INLINE void rewrite_answer(struct cpu *c, const struct nat_entry *t)
{
	c->to.src = t->frontend;
	c->to.sport = t->frontend_port;
	c->to.dst = t->client;
	c->to.dport = t->client_port;
	c->to.option = false;
	c->to.encap = false;
}

/* Looks up a client's packet behind one of its two usual anchors: the node's, with its first candidate port, or the client's. */
INLINE struct nat_entry *nat_entry_at(struct cpu *c, const struct packet *pkt, bool node)
{
	struct nat_entry *t;

	nat_tuple_port(c, pkt, node ? nat_entry_port(pkt, 0) : bpf_ntohs(pkt->sport), !node);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	return t && nat_entry_is_request(t, pkt) ? t : NULL;
}

/*
 * The entry of a client's packet, where nearly all are; its key is the CPU's. NULL if it is not there. The anchor behind which the CPU found the last one
 * comes first: most traffic of a node is SNATed, or most is not. Cost: per packet.
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

/* Looks in the places behind the CPU's anchor for the row of the side's packet. Returns 1 if the CPU's key is that row's. */
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

/* Moves the row with the CPU's key to the first place, if that is free, since answers look no further then. */
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

/* Looks in all places where the row of a client's packet may be: the CPU's, or the one that its ICMP error is about. Returns 1 if the CPU's key is that
 * row's. Cost: per flow. */
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

/* Looks in all places behind the CPU's anchor for the row of the side's packet: the CPU's, or the one that its ICMP error is about. Returns 1 if the CPU's
 * key is that row's. */
APART int nat_entry_walk_slots(__u32 side, __u32 about)
{
	struct cpu *c = cpu_this();

	return c && nat_entry_walk(c, about ? &c->about : &c->pkt, side);
}

/* The row of the side's packet behind the CPU's anchor. Where the first place is free, so are the others for it. Cost: per packet. */
INLINE struct nat_entry *nat_entry_find(struct cpu *c, const struct packet *pkt, int side, bool about)
{
	struct nat_entry *t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);

	if (!t || likely(side == SIDE_CLIENT ? nat_entry_is_request(t, pkt) : nat_entry_is_reply(t, pkt)))
		return t;
	return nat_entry_walk_slots(side, about) ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : NULL;
}

/* The row of the CPU's packet, which a client sends, by the index of ports; its key is the CPU's. Cost: per packet of a flow without its first candidate. */
INLINE struct nat_entry *nat_entry_indexed(struct cpu *c)
{
	struct port_index *at = port_index_find(c, &c->pkt);

	if (!at)
		return NULL;
	nat_tuple_port(c, &c->pkt, at->port, at->flags & PORT_INDEX_OWN);
	return nat_entry_find(c, &c->pkt, SIDE_CLIENT, false);
}

/* The row of an answer that is for the node's own address, by its port. Cost: per packet. */
INLINE struct nat_entry *nat_entry_reply_node(struct cpu *c, const struct packet *pkt, bool about)
{
	struct nat_entry *t;

	nat_tuple_node(&c->nat_key, pkt->dport, pkt->proto);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (likely(t && nat_entry_is_reply(t, pkt)))
		return t;
	return nat_entry_walk_slots(SIDE_BACKEND, about) ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : NULL;
}

/* The row of an answer that is for the client's own address: a request moves to the first place, if that is free. Cost: per packet. */
INLINE struct nat_entry *nat_entry_reply_client(struct cpu *c, const struct packet *pkt, bool about)
{
	nat_tuple_client(&c->nat_key, &pkt->dst, pkt->dport, pkt->proto);
	return nat_entry_find(c, pkt, SIDE_BACKEND, about);
}

#endif
