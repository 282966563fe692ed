/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Choosing the port of a translated flow. A connection has a few candidates, which follow from its tuple, so that most
 * entries are found from both ends without an index. If no candidate is free, the best one is taken over; if none can
 * be, all ports of the pool are examined.
 *
 * Masquerading and Services share one pool: each uses its own half first, and then the other one.
 */
#ifndef MYELIN_PORT_H
#define MYELIN_PORT_H

#include "row.h"
#include "../flow/flow.h"

/* How suitable a port is for a new connection, best first. */
enum port_rank {
	PORT_FREE,   /* no entry, or one that has expired */
	PORT_NEWER,  /* closed; the new SYN's timestamp is newer, so that the peer accepts it in TIME-WAIT (RFC 6191) */
	PORT_CLOSED, /* closed, and the peer has no TIME-WAIT */
	PORT_YIELDS, /* half-open, without a reply, or one datagram each way: evicted if nothing better is left */
	PORT_USED,   /* never taken over */
};

/*
 * The state of a search, in the CPU's scratch, because the verifier would track each of its values in registers. Times
 * are in ticks.
 */
struct port_search {
	__u32 rank;   /* enum port_rank of the best port so far */
	__u32 idle;   /* the best port: time since the last packet of its entry */
	__u32 port;   /* the best port, host byte order */
	__u32 skip;   /* a port that could not be claimed; 0: none */
	__u32 holder; /* port_holder of the client that holds most candidates */
	__u32 held;   /* how many more candidates it holds than others */
	__u32 oldest; /* the longest time since the last packet of one of its candidates */
	__u32 victim; /* the port of that candidate */
};

/* The index: ports of connections that do not have their first candidate. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_tuple);
	__type(value, struct port_index);
} port_indexes SEC(".maps");

/* Set once a connection may have a port of the other kind's half: both kinds are looked up in both halves then. */
__u32 ports_borrowed;

/* Returns a port from min to max, host byte order, which depends on the packet's tuple and the attempt only. */
INLINE __u16 port_candidate(const struct packet *pkt, __u32 attempt, __u32 min, __u32 max)
{
	__u64 h = pkt->src.d[1] * 0x9e3779b97f4a7c15ULL;

	h = (h ^ pkt->dst.d[1] ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
	h = (h ^ ((__u32)pkt->sport << 16 | pkt->dport) ^ (h >> 32)) * 0x94d049bb133111ebULL;
	/*
	 * Maps the hash to the range by multiplication: a division costs a packet 8 ns. The golden ratio keeps the
	 * candidates of successive attempts far apart.
	 */
	return min + ((__u64)((__u32)(h >> 32) + attempt * 0x9e3779b9u) * (max - min + 1) >> 32);
}

/* Hashes a client's address to 32 bits, which identify the holder of a port. */
INLINE __u32 port_holder(const struct addr *client)
{
	return addr_hash(client) >> 32;
}

/*
 * Whether the port may be used by the kind: it is in its half, or in the other one after that was borrowed from.
 * Cost: per packet to a node's address.
 */
INLINE bool port_may_be(__u32 kind, __u16 port)
{
	return port_in(kind, port) || (unlikely(ports_borrowed) && port_in(!kind, port));
}

/* Whether a port that the kind claims may also be used by the other kind. */
INLINE bool port_crosses(__u32 kind, __u16 port)
{
	return ports_borrowed || !port_in(kind, port);
}

/*
 * Ranks the port of a closed TCP connection for the packet. A peer in TIME-WAIT accepts a SYN whose timestamp is newer
 * than that of the FIN that closed the connection (RFC 6191). clean: the peer has no TIME-WAIT.
 */
INLINE __u32 port_rank_closed(const struct packet *pkt, __u32 seen, __u32 timestamp, bool clean)
{
	if (!flow_syn(pkt) || !flow_quiet(seen))
		return PORT_USED;
	if (pkt->timestamp && timestamp && clock_before(timestamp, pkt->timestamp))
		return PORT_NEWER;
	return clean ? PORT_CLOSED : PORT_USED;
}

/* Whether the flow was one request and one reply at most, with no packet for five seconds. */
INLINE bool port_exchanged(__u64 sent, __u64 received, __u32 seen)
{
	return sent <= 1 && received <= 1 && clock_before(seen + 5 * config.hz, clock_now());
}

INLINE struct port_search *port_search(struct cpu *c)
{
	return (void *)c->scratch;
}

INLINE void port_search_reset(struct port_search *s)
{
	__u32 skip = s->skip;

	__builtin_memset(s, 0, sizeof(*s));
	s->skip = skip;
	s->rank = PORT_USED;
}

/* Records the port if it is better than the best one so far, or as good and idle for longer. */
INLINE void port_offer(struct port_search *s, __u16 port, __u32 rank, __u32 idle)
{
	if (port == s->skip || rank > s->rank || (rank == s->rank && idle <= s->idle) || rank == PORT_USED)
		return;
	s->rank = rank;
	s->idle = idle;
	s->port = port;
}

/*
 * Counts an entry for the client that holds it, by majority vote (Boyer and Moore 1981): a client that has more
 * candidates than all others together is the holder in the end.
 */
INLINE void port_count(struct port_search *s, __u16 port, __u32 holder, __u32 idle)
{
	if (port == s->victim)
		return; /* in a small range, attempts can have the same candidate */
	if (s->held && s->holder != holder) {
		s->held--;
		return;
	}
	if (!s->held || idle >= s->oldest) {
		s->oldest = idle;
		s->victim = port;
	}
	s->holder = holder;
	s->held++;
}

/* Returns the port that a client with most of the candidates must give up for another client, or 0. */
INLINE __u32 port_reclaim(const struct port_search *s, const struct addr *client, __u32 attempts)
{
	return s->held > attempts / 4 && s->holder != port_holder(client) ? s->victim : 0;
}

INLINE void nat_tuple_set(struct nat_tuple *k, const struct addr *src, __be16 sport, const struct addr *dst,
			  __be16 dport, __u8 proto)
{
	k->src = *src;
	k->dst = *dst;
	k->sport = sport;
	k->dport = dport;
	k->proto = proto;
	__builtin_memset(k->pad, 0, sizeof(k->pad));
}

INLINE void nat_tuple_of(struct nat_tuple *k, const struct packet *pkt)
{
	nat_tuple_set(k, &pkt->src, pkt->sport, &pkt->dst, pkt->dport, pkt->proto);
}

/* Finds the packet's connection in the index. Returns NULL if it is not there. Fills in c->port_key. */
INLINE struct port_index *port_index_find(struct cpu *c, const struct packet *pkt)
{
	nat_tuple_of(&c->port_key, pkt);
	return bpf_map_lookup_elem(&port_indexes, &c->port_key);
}

/*
 * Adds the port of the packet's connection to the index. Returns false if the index is full. Cost: per flow that does
 * not have its first candidate.
 */
INLINE bool port_index_put(struct cpu *c, const struct packet *pkt, const struct addr *snat, __u16 port)
{
	struct port_index *at = port_index_find(c, pkt);
	int err;

	if (at && at->port == port && addr_equal(&at->snat, snat))
		return true; /* left by a former connection between the same ends */
	at = &c->port_index;
	at->snat = *snat;
	at->port = port;
	at->pad = 0;
	err = bpf_map_update_elem(&port_indexes, &c->port_key, at, BPF_ANY);
	return !err;
}

#endif
