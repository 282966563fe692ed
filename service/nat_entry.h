/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Lookup of NAT entries of Services. The functions don't access the packet's data, so that tc and XDP share them: the
 * input is the parsed packet c->pkt, the result is the rewrite c->to.
 */
#ifndef MYELIN_NAT_ENTRY_H
#define MYELIN_NAT_ENTRY_H

#include "service.h"
#include "stats.h"
#include "../flow/flow.h"
#include "../nat/nat.h"

enum service_side {
	SIDE_CLIENT,
	SIDE_BACKEND,
};

INLINE bool nat_tuple_equal(const struct nat_tuple *a, const struct nat_tuple *b)
{
	return addr_equal(&a->src, &b->src) && addr_equal(&a->dst, &b->dst) && a->sport == b->sport &&
	       a->dport == b->dport && a->proto == b->proto;
}

INLINE void nat_entry_set_created(struct nat_entry *n)
{
	__u64 now = bpf_jiffies64();

	n->created = now;
	n->created_high = now >> 32;
}

INLINE __u64 nat_entry_created(const struct nat_entry *t)
{
	return (__u64)t->created_high << 32 | t->created;
}

/* Sets c->reply_key to the tuple of replies in the flow with the key k. */
INLINE void nat_reply_tuple(struct cpu *c, const struct nat_tuple *k, const struct nat_entry *t)
{
	bool snat = t->flags & NAT_ENTRY_SNAT;

	nat_tuple_set(&c->reply_key, &t->backend, t->backend_port, snat ? &t->snat : &k->src,
		      snat ? t->nat_port : k->sport, k->proto);
}

/* Whether the flow has an entry in nat_replies. */
INLINE bool nat_entry_has_reply(const struct nat_entry *t)
{
	return !(t->flags & NAT_ENTRY_DSR) || !t->backend_id;
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

/* Updates the flow's state after packets of a side with flags that were not seen before. */
INLINE void nat_entry_note_flags(struct nat_entry *t, int side, __u8 tcp_flags)
{
	t->tcp_flags[side] |= tcp_flags;
	/* This node sees only one direction of a flow with DSR. */
	if (tcp_flags & TCP_RST || t->tcp_flags[0] & t->tcp_flags[1] & TCP_FIN ||
	    (t->flags & NAT_ENTRY_DSR && tcp_flags & TCP_FIN))
		t->flags |= NAT_ENTRY_CLOSING;
}

/* Deletes the entry t, whose key is k, and that of its replies. Sets c->reply_key. */
INLINE void nat_entry_delete(struct cpu *c, const struct nat_tuple *k, const struct nat_entry *t)
{
	struct nat_reply *r;

	if (nat_entry_has_reply(t)) {
		nat_reply_tuple(c, k, t);
		r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);
		if (r && nat_tuple_equal(&r->request, k))
			bpf_map_delete_elem(&nat_replies, &c->reply_key);
	}
	bpf_map_delete_elem(&nat_entries, k);
}

/* Prepares c->nat_reply, a new entry of the replies to the flow with the key c->nat_key and the NAT entry t. */
INLINE struct nat_reply *nat_reply_new(struct cpu *c, const struct nat_entry *t)
{
	struct nat_reply *r = &c->nat_reply;

	__builtin_memset(r, 0, sizeof(*r));
	r->request = c->nat_key;
	r->stat = t->stat;
	return r;
}

/* Counts the first packet of a new flow. */
INLINE void nat_entry_first(struct nat_entry *n, const struct packet *pkt, __u32 length)
{
	n->packets[SIDE_CLIENT] = 1;
	n->bytes[SIDE_CLIENT] = length;
	nat_entry_note_flags(n, SIDE_CLIENT, pkt->tcp_flags);
}

/*
 * Counts a request, and updates the flow's state. The key of t is c->nat_key. The entry's counters are not atomic: the
 * packets of a flow are one CPU's, and if they are not, the entry misses some, while service_stats is exact. Cost: per
 * packet.
 */
INLINE void nat_entry_count(struct nat_entry *t, const struct packet *pkt, __u32 length)
{
	__u32 now = clock_now();

	t->packets[SIDE_CLIENT]++;
	t->bytes[SIDE_CLIENT] += length;
	service_stat_count(t->stat, SIDE_CLIENT, length);
	if (t->seen != now)
		t->seen = now;
	if (likely(!(pkt->tcp_flags & ~t->tcp_flags[SIDE_CLIENT])))
		return;
	if (pkt->tcp_flags & TCP_FIN) {
		t->timestamp = pkt->timestamp;
		if (!(t->tcp_flags[SIDE_BACKEND] & TCP_FIN))
			t->flags |= NAT_ENTRY_CLIENT_FIN;
	}
	nat_entry_note_flags(t, SIDE_CLIENT, pkt->tcp_flags);
}

/*
 * Moves what the entry c->reply_key has counted to the NAT entry c->nat_key. Counters are set to 0, not reduced: if two
 * CPUs have replies of the flow at the same moment, what was counted since the last flush may be missed or moved twice,
 * but counters never fall below 0. Cost: per flow, once a second, and when a TCP flag is seen for the first time.
 */
APART int nat_reply_flush(void)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;
	struct nat_reply *r;
	__u32 packets;
	__u64 bytes;

	if (!c)
		return 0;
	r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (!r || !t)
		return 0;
	packets = r->packets;
	bytes = r->bytes;
	r->packets = 0;
	r->bytes = 0;
	t->packets[SIDE_BACKEND] += packets;
	t->bytes[SIDE_BACKEND] += bytes;
	t->seen = r->flushed;
	t->flags |= NAT_ENTRY_REPLIED;
	nat_entry_note_flags(t, SIDE_BACKEND, r->tcp_flags);
	return 0;
}

/* Counts a reply with the entry c->reply_key. Cost: per packet. */
INLINE void nat_reply_count(struct nat_reply *r, const struct packet *pkt, __u32 length)
{
	__u32 now = clock_now();

	r->packets++;
	r->bytes += length;
	service_stat_count(r->stat, SIDE_BACKEND, length);
	if (likely(!(pkt->tcp_flags & ~r->tcp_flags) && r->flushed && now - r->flushed < config.hz))
		return;
	r->tcp_flags |= pkt->tcp_flags;
	r->flushed = now; /* here, because the NAT entry may be gone */
	nat_reply_flush();
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
		c->to.dst = c->nat_key.dst;
		c->to.dport = c->nat_key.dport;
		c->to.option = false;
		return false;
	}
	c->to.via = prefix->via;
	if (addr_is_zero(&prefix->via) || addr_is4(&prefix->via) != addr_is4(&t->backend))
		c->to.encap = false;
	return true;
}

/* Sets c->to to the rewrite of a request of the flow with the key c->nat_key. */
INLINE void rewrite_request(struct cpu *c, const struct nat_entry *t)
{
	bool snat = t->flags & NAT_ENTRY_SNAT;

	c->to.src = snat ? t->snat : c->nat_key.src;
	c->to.sport = snat ? t->nat_port : c->nat_key.sport;
	c->to.dst = t->backend;
	c->to.dport = t->backend_port;
	c->to.encap = config.lb_dispatch && !config.tunnel && t->flags & NAT_ENTRY_DSR;
	if (c->to.encap && !node_of(c, t))
		return;
	c->to.option = t->flags & NAT_ENTRY_DSR && (c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt));
}

/* Sets c->to to the rewrite of a reply in the flow with the key c->nat_key. */
INLINE void rewrite_answer(struct cpu *c)
{
	c->to.src = c->nat_key.dst;
	c->to.sport = c->nat_key.dport;
	c->to.dst = c->nat_key.src;
	c->to.dport = c->nat_key.sport;
	c->to.option = false;
	c->to.encap = false;
}

/* Finds the entry of a request, and sets c->nat_key to its key. Cost: per packet. */
INLINE struct nat_entry *nat_entry_request(struct cpu *c, const struct packet *pkt)
{
	nat_tuple_of(&c->nat_key, pkt);
	return bpf_map_lookup_elem(&nat_entries, &c->nat_key);
}

/* Finds the entry of a reply; if there is one, sets c->nat_key to the key of the flow's NAT entry. Cost: per packet. */
INLINE struct nat_reply *nat_entry_reply(struct cpu *c, const struct packet *pkt)
{
	struct nat_reply *r;

	nat_tuple_of(&c->reply_key, pkt);
	r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);
	if (r)
		c->nat_key = r->request;
	return r;
}

#endif
