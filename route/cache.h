/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forwarding cache: decisions where packets from one address to another go, through which device and with which
 * Ethernet header. A decision takes the slow path and uses the kernel's routes; a cached one costs a packet one lookup.
 */
#ifndef MYELIN_ROUTE_CACHE_H
#define MYELIN_ROUTE_CACHE_H

#include "../bandwidth/bandwidth.h"
#include "tunnel/tunnel.h"
#include "row.h"

#define AF_INET 2
#define AF_INET6 10

/* Marks in the input device, pkt->ifindex, which keep the entries of different packets between two addresses apart. */
enum path_mark {
	PATH_OUTER = 0x20000000u,     /* the tunnel's packet as the network sees it, for the node itself */
	PATH_PLAIN = 0x40000000u,     /* to another node, and not encrypted: its source is not this node's */
	PATH_REWRITTEN = 0x80000000u, /* translated: received packets must not match its entry */
	PATH_MARKS = PATH_OUTER | PATH_PLAIN | PATH_REWRITTEN,
};

/*
 * The forwarding cache. Per CPU, and therefore without locks and LRU lists; a lookup is an array access. Two-way set
 * associative: two neighbouring entries are a set, of which the older decision is evicted. The size is a power of 2.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct cached_path);
} paths SEC(".maps");

enum prefix_flag {
	PREFIX_CLUSTER = 1,  /* pods or nodes: never masqueraded */
	PREFIX_TUNNEL = 2,   /* reached through the tunnel, at the node via */
	PREFIX_NODE = 4,     /* an address of another node */
	PREFIX_NO_PORTS = 8, /* PREFIX_NODE: no node port is served on it */
	PREFIX_STRICT = 16,  /* nothing leaves for it in plain text */
	PREFIX_NODE_ENCRYPTS = 32, /* PREFIX_NODE, or this node's address: what the node itself sends is encrypted */
};

struct prefix {
	struct addr via;  /* identifies the node that the prefix belongs to; zero: none */
	__u32 flags;      /* enum prefix_flag */
	__u32 encryption; /* ifindex of the device that encrypts what is sent to the node; 0: none */
};

/* The prefixes of the cluster. Slow path only. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, struct prefix);
} prefixes SEC(".maps");

INLINE struct prefix *prefix_find(const struct addr *a)
{
	struct prefix_key key = { .length = 128 };

	__builtin_memcpy(key.addr, a, sizeof(key.addr));
	return bpf_map_lookup_elem(&prefixes, &key);
}

enum wire_flag {
	WIRE_TUNNEL = 1,    /* encapsulates packets of pods to other nodes */
	WIRE_L3 = 2,        /* without link-layer header: WireGuard, IPIP, TUN */
	WIRE_ENCRYPTED = 4, /* encrypts what is sent */
	WIRE_WIREGUARD = 8, /* a WireGuard device of encryption between nodes */
};

struct wire {
	struct addr addr4; /* the address that pods are masqueraded to; zero: none */
	struct addr addr6;
	__u32 mtu;         /* layer-3 bytes, where the route has no MTU */
	__u32 flags;       /* enum wire_flag */
};

/* By ifindex. Slow path only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct wire);
} wires SEC(".maps");

/* Hashes the addresses by which an entry is found: only the destination if any is set. */
INLINE __u64 path_hash(const struct packet *pkt, bool any)
{
	return any ? addr_hash(&pkt->dst) : addr_pair_hash(&pkt->src, &pkt->dst);
}

/* Returns the index where the packet's lookup starts. The other entry of the set has that index ^ 1. */
INLINE __u32 path_index(const struct packet *pkt, bool any)
{
	return path_hash(pkt, any) >> config.path_shift;
}

INLINE bool path_matches(const struct cached_path *p, const struct addr *src, const struct addr *dst, __u32 ifindex,
			 bool any)
{
	return p->path.in_ifindex == ifindex && addr_equal(&p->dst, dst) && (any || addr_equal(&p->src, src));
}

/* Revalidates the decision against the epochs. Returns false if it is outdated. Cost: per change of any epoch. */
INLINE bool path_revalidate(struct path *p, __u64 generation)
{
	if (p->epoch != epoch_sum(p->src_slot, p->dst_slot))
		return false;
	p->generation = generation;
	return true;
}

/* Whether the decision is still current by the epochs. Cost: per packet. */
INLINE bool path_is_current(struct path *p)
{
	__u64 generation = epoch_generation();

	return likely(p->generation == generation) || path_revalidate(p, generation);
}

/* Whether the decision is current, and has not expired. Cost: per packet. */
INLINE bool path_is_valid(struct path *p)
{
	return path_is_current(p) && !clock_before(p->expires, clock_now());
}

/*
 * Finds the entry for packets from ifindex and src to dst, from any source if any is set. index: path_index of such
 * packets. Returns NULL if there is none, or if it is outdated. Cost: per packet.
 */
INLINE struct cached_path *path_lookup(__u32 index, const struct addr *src, const struct addr *dst, __u32 ifindex,
				       bool any)
{
	struct cached_path *p = bpf_map_lookup_elem(&paths, &index);

	if (unlikely(p && !path_matches(p, src, dst, ifindex, any))) {
		index ^= 1;
		p = bpf_map_lookup_elem(&paths, &index);
		if (p && !path_matches(p, src, dst, ifindex, any))
			return NULL;
	}
	return likely(p && path_is_valid(&p->path)) ? p : NULL;
}

/* Finds the packet's forwarding cache entry, as path_lookup does. Cost: per packet. */
INLINE struct cached_path *path_find(const struct packet *pkt, bool any)
{
	return path_lookup(path_index(pkt, any), &pkt->src, &pkt->dst, pkt->ifindex, any);
}

/* As path_find, for a packet from ifindex to dst whose entry is found by its destination only. Cost: per packet. */
INLINE struct cached_path *path_find_to(const struct addr *dst, __u32 ifindex)
{
	return path_lookup(addr_hash(dst) >> config.path_shift, dst, dst, ifindex, true);
}

/*
 * Whether the decision applies to a packet that came through the tunnel: the entry's via is the node that its source
 * belongs to, and must be the sending node (c->outer). Always true for other devices. Cost: per packet.
 */
INLINE bool path_tunnel_matches(const struct __sk_buff *skb, const struct cpu *c, const struct path *p)
{
	return !tunnel_device(skb) || addr_equal(&p->via, &c->outer);
}

/* Applies limits to the path of an endpoint's packets. Cost: lookups; for Services between families, per packet. */
INLINE void path_limit_source(struct path *p, __u16 slot)
{
	if (!config.bandwidth)
		return;
	p->limited = slot;
	p->limits = bandwidth_limits(slot, p->dst_slot);
}

/* Whether the packet is sent to another node or the world, not to a pod or to the stack. */
INLINE bool path_leaves(const struct path *p)
{
	return p->action == PATH_WIRE || p->action == PATH_RESOLVE || p->action == PATH_TUNNEL ||
	       (config.encryption && p->action == PATH_ENCRYPT);
}

/* Whether the output device has no link-layer header, and so no neighbours. Only then is the destination MAC zero. */
INLINE bool path_is_l3(const struct path *p)
{
	return mac_is_zero(&p->dmac);
}

/* Sends the first packet after a decision through the kernel's neighbour table, which refreshes neighbours in use. */
INLINE void path_via_neighbour(struct path *p)
{
	if (p->action == PATH_WIRE && !path_is_l3(p))
		p->action = PATH_RESOLVE;
}

/* Whether the entry can be used for another decision, because it has none, or one that has expired. */
INLINE bool path_is_free(const struct cached_path *p)
{
	return p->path.action == PATH_NONE || clock_before(p->path.expires, clock_now());
}

/* What the fast path does with packets that follow the decision. */
INLINE __u8 path_fast(const struct path *p)
{
	bool fast = p->action == PATH_POD || p->action == PATH_WIRE || (config.tunnel && p->action == PATH_TUNNEL);

	return fast && !p->limits ? p->action : PATH_NONE;
}

/*
 * Stores c->path in the forwarding cache for packets like the CPU's: in the first entry of the set if it is free, since
 * lookups start there. Slow path.
 */
INLINE void path_store(struct cpu *c, bool any)
{
	const struct packet *pkt = &c->pkt;
	__u32 i = path_index(pkt, any);
	struct cached_path *first = bpf_map_lookup_elem(&paths, &i), *second;

	i ^= 1;
	second = bpf_map_lookup_elem(&paths, &i);
	if (!first || !second)
		return;
	if (!path_matches(first, &pkt->src, &pkt->dst, pkt->ifindex, any)) {
		bool found = path_matches(second, &pkt->src, &pkt->dst, pkt->ifindex, any);

		if (found && path_is_free(first))
			second->path.in_ifindex = 0; /* one entry only */
		else if (found || (!path_is_free(first) &&
				   (path_is_free(second) || clock_before(second->path.expires, first->path.expires))))
			first = second;
	}
	c->path.in_ifindex = pkt->ifindex;
	c->path.fast = c->path.flags ? PATH_NONE : path_fast(&c->path);
	first->dst = pkt->dst;
	first->src = pkt->src;
	first->snat = c->snat;
	first->path = c->path;
	/* Something may have changed since the decision: the next packet revalidates it. */
	first->path.generation = epoch_generation() - 1;
}

#endif
