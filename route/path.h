/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forwarding cache: decisions where packets from one address to another go, through which device and with which
 * Ethernet header. A decision takes the slow path and uses the kernel's routes; a cached one costs a packet one lookup.
 */
#ifndef MYELIN_PATH_H
#define MYELIN_PATH_H

#include "../bpf/icmp/icmp.h"
#include "../endpoint/netkit.h"
#include "../l7/dns/dns.h"
#include "neighbour/neighbour.h"

#define AF_INET 2
#define AF_INET6 10

/* Set in pkt->ifindex once a packet is translated: received packets must not match the entry of the translated one. */
#define PATH_REWRITTEN 0x80000000u

/* The same for packets to other nodes that are not encrypted, because they keep a source that is not this node's. */
#define PATH_PLAIN 0x40000000u

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
};

struct prefix {
	struct addr via;  /* identifies the node that the prefix belongs to; zero: none */
	__u32 flags;      /* enum prefix_flag */
	__u32 encryption; /* ifindex of the WireGuard device that leads to the node; 0: none */
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

/* Stores c->path in the forwarding cache for packets like the CPU's. Slow path. */
INLINE void path_store(struct cpu *c, bool any)
{
	const struct packet *pkt = &c->pkt;
	__u32 i = path_index(pkt, any);
	struct cached_path *first = bpf_map_lookup_elem(&paths, &i), *second;

	i ^= 1;
	second = bpf_map_lookup_elem(&paths, &i);
	if (!first || !second)
		return;
	if (path_matches(second, &pkt->src, &pkt->dst, pkt->ifindex, any) ||
	    (!path_matches(first, &pkt->src, &pkt->dst, pkt->ifindex, any) &&
	     (second->path.action == PATH_NONE || clock_before(second->path.expires, first->path.expires))))
		first = second;
	c->path.in_ifindex = pkt->ifindex;
	first->dst = pkt->dst;
	first->src = pkt->src;
	first->snat = c->snat;
	first->path = c->path;
	/* Something may have changed since the decision: the next packet revalidates it. */
	first->path.generation = epoch_generation() - 1;
}

/* Whether the packet has the source MAC that the decision was made for. Any other one is spoofed. Cost: per packet. */
INLINE bool path_mac_matches(const struct __sk_buff *skb, const struct path *p)
{
	/* A plain pointer, so that the compiler loads aligned words. */
	const __u8 *data = (void *)(long)skb->data, *want = p->in_mac.b;

	if (data + ETH_HLEN > (const __u8 *)(long)skb->data_end)
		return false;
	data += ETH_ALEN;
	return *(const __u32 *)want == *(const __u32 *)data && *(const __u16 *)(want + 4) == *(const __u16 *)(data + 4);
}

INLINE int drop_spoofed(struct __sk_buff *skb, struct cpu *c, const struct path *p)
{
	c->pkt.slot = p->src_slot;
	return drop(skb, c, DROP_SPOOFED_MAC);
}

/* Returns the layer-3 length of the largest packet that skb becomes on the wire: of GSO packets, that of a segment. */
INLINE __u32 path_packet_size(const struct __sk_buff *skb, const struct packet *pkt)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 l3 = sizeof(struct ipv6hdr), l4 = 8, jumbo;

	if (!skb->gso_size)
		return skb->len - ETH_HLEN;
	if (pkt->family == 4 && data + L3 + 1 <= end)
		l3 = (*(__u8 *)(data + L3) & 0xf) * 4;
	jumbo = pkt->family == 6 && packet_is_jumbo(skb) ? sizeof(struct jumbo_header) : 0;
	if ((pkt->proto == IPPROTO_TCP || jumbo) && data + L3 + l3 + jumbo + L4_TCP_FLAGS <= end)
		l4 = (*(__u8 *)(data + L3 + l3 + jumbo + L4_TCP_FLAGS - 1) >> 4) * 4;
	return skb->gso_size + l3 + l4;
}

/* Decrements the TTL and writes the Ethernet header. Cost: per packet. */
INLINE bool path_rewrite(struct __sk_buff *skb, const struct packet *pkt, const struct path *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u32 *macs = (const __u32 *)&p->dmac;
	__u32 *eth = data;

	if (pkt->family == 4) {
		struct iphdr *ip = data + L3;
		__u32 sum;

		if ((void *)(ip + 1) > end)
			return false;
		sum = (__u32)ip->check + bpf_htons(0x0100);
		ip->check = (__u16)(sum + (sum >> 16));
		ip->ttl--;
	} else {
		struct ipv6hdr *ip = data + L3;

		if ((void *)(ip + 1) > end)
			return false;
		ip->hop_limit--;
		/* The hop limit is in no checksum, except CHECKSUM_COMPLETE's sum of the whole packet. */
		bpf_csum_update(skb, bpf_htons(0xfffe));
	}
	eth[0] = macs[0];
	eth[1] = macs[1];
	eth[2] = macs[2];
	return true;
}

/*
 * Marks an skb that the datapath forwards to a wire, for to_wire: its source may be the node's address (masquerading,
 * Services), but it is not the node's own. skb->cb survives bpf_redirect and bpf_redirect_neigh.
 */
enum wire_mark {
	WIRE_FORWARDED = 0x6d796677,
};

INLINE void wire_mark_set(struct __sk_buff *skb)
{
	if (config.host_policy)
		skb->cb[0] = WIRE_FORWARDED;
}

/* Sends the packet out of c->path's device; the kernel resolves the neighbour. Cost: first packet of a decision. */
APART int path_resolve(struct __sk_buff *skb)
{
	struct bpf_redir_neigh nh = {};
	struct cpu *c = cpu_this();
	struct path *p;

	if (!c)
		return TC_ACT_SHOT;
	p = &c->path;
	nh.nh_family = addr_is4(&p->via) ? AF_INET : AF_INET6;
	__builtin_memcpy(nh.ipv6_nh, p->via.w, sizeof(nh.ipv6_nh));
	if (nh.nh_family == AF_INET)
		nh.ipv4_nh = p->via.w[3];
	count(skb, c, FORWARD_RESOLVE);
	trace(skb, c, FORWARD_RESOLVE);
	wire_mark_set(skb);
	return bpf_redirect_neigh(p->ifindex, &nh, sizeof(nh), 0);
}

/*
 * Sends the packet to the proxy. A DNS message that need not pass through it is handed back by the TUN device, as the
 * proxy would send it. Returns a verdict. Cost: per packet of flows with L7 rules.
 */
INLINE int path_send_proxy(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u32 hook)
{
	__u32 outcome = FORWARD_PROXY, ifindex = p->ifindex;
	bool datagram = path_is_l3(p);

	if (config.dns_cache && datagram)
		outcome = dns_pass(skb, (__u32)p->src_slot << 16 | p->dst_slot);
	count(skb, c, outcome);
	trace(skb, c, outcome);
	if (!datagram)
		return netkit_enter(skb, ifindex, hook);
	return bpf_redirect(ifindex, outcome == FORWARD_PROXY ? 0 : BPF_F_INGRESS);
}

/*
 * Sends the packet to its next hop. p must be c->path if the action is PATH_RESOLVE, which is never cached. hook is
 * c->pkt.hook, as a constant where possible, which makes counting cheaper. Returns a verdict. Cost: per packet.
 */
INLINE int path_send(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	switch (action) {
	case PATH_POD:
		count_at(c, hook, FORWARD_POD, skb->len);
		trace(skb, c, FORWARD_POD);
		return netkit_enter(skb, p->ifindex, hook);
	case PATH_TUNNEL:
		if (!tunnel_key_set(skb, &p->via))
			return drop(skb, c, DROP_REWRITE);
		count(skb, c, FORWARD_TUNNEL);
		trace(skb, c, FORWARD_TUNNEL);
		return bpf_redirect(config.tunnel_ifindex, 0);
	case PATH_ENCRYPT:
		count(skb, c, FORWARD_ENCRYPT);
		trace(skb, c, FORWARD_ENCRYPT);
		wire_mark_set(skb);
		return bpf_redirect(p->ifindex, 0);
	case PATH_RESOLVE:
		return path_resolve(skb);
	case PATH_PROXY:
		return path_send_proxy(skb, c, p, hook);
	default:
		count_at(c, hook, FORWARD_WIRE, skb->len);
		trace(skb, c, FORWARD_WIRE);
		wire_mark_set(skb);
		return bpf_redirect(p->ifindex, 0);
	}
}

/*
 * Checks TTL and MTU; of a pod's packet to the host's stack, that it hides no neighbour discovery. Returns 0, or the
 * verdict on a packet that was refused. Cost: per packet.
 */
INLINE int path_refuse(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action)
{
	if (action == PATH_STACK) {
		if (c->pkt.hook == HOOK_FROM_POD && unlikely(neighbour_may_hide(&c->pkt)))
			return neighbour_refuse_hidden(skb);
		return 0;
	}
	if (unlikely(c->pkt.ttl <= 1))
		return icmp_refuse(skb, DROP_TTL, 0);
	if (unlikely(p->mtu && skb->len - ETH_HLEN > p->mtu) && path_packet_size(skb, &c->pkt) > p->mtu)
		return icmp_refuse(skb, DROP_TOO_BIG, p->mtu);
	return 0;
}

/* Forwards a packet that has passed path_refuse. Returns a verdict. Cost: per packet. */
INLINE int path_forward(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	if (action == PATH_STACK)
		return pass(skb, c);
	if (unlikely(!path_rewrite(skb, &c->pkt, p)))
		return drop(skb, c, DROP_REWRITE);
	return path_send(skb, c, p, action, hook);
}

/*
 * Checks and forwards the packet. action is p->action, or PATH_RESOLVE for a packet that takes the kernel's neighbour
 * table. Returns a verdict. Cost: per packet.
 */
INLINE int path_follow(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	int verdict = path_refuse(skb, c, p, action);

	return verdict ? verdict : path_forward(skb, c, p, action, hook);
}

#endif
