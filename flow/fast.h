/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path. It forwards packets between pods and wires whose decision is cached and needs nothing else: no
 * translation, refusal, limit, event, or change of the flow's state. It makes the checks of the full path, but holds
 * the packet's fields in registers instead of struct cpu, which saves a third of its cost. It changes nothing before
 * it has decided to forward the packet, so that all other packets take the full path from its beginning.
 */
#ifndef MYELIN_FAST_H
#define MYELIN_FAST_H

#include "flow.h"
#include "outer.h"

/* The bytes of an IPv4 header from the TTL on: TTL, protocol, checksum. */
typedef __u32 __attribute__((may_alias)) ttl_word;

/* Reads a header without options, whose length fits in the packet. Returns false for any other one. */
INLINE bool fast_parse4(const struct __sk_buff *skb, struct packet *pkt, const struct iphdr *ip)
{
	__u32 length = bpf_ntohs(ip->tot_len), header = sizeof(*ip);

	/* One comparison for both bounds: packets shorter than a header become very long ones. */
	if (*(const __u8 *)ip != IP_PLAIN || length - header > skb->len - (L3 + header))
		return false;
	pkt->end = L3 + length;
	packet_read4(pkt, ip);
	return true;
}

/* Reads the IP header at data. Returns false if the full path is needed. */
INLINE bool fast_parse(const struct __sk_buff *skb, struct packet *pkt, void *data, int family)
{
	void *end = (void *)(long)skb->data_end;

	if (family == 4)
		return data + L3 + sizeof(struct iphdr) <= end && fast_parse4(skb, pkt, data + L3);
	return data + L3 + sizeof(struct ipv6hdr) <= end && packet_parse6(skb, pkt, data + L3) == PARSED_IP &&
	       (pkt->hook != HOOK_FROM_POD || pkt->proto != IPPROTO_ICMPV6);
}

/* Whether an event must report the packet. Reads the protocol again: no register has it. Cost: per packet. */
INLINE bool fast_traced(const struct __sk_buff *skb, struct packet *pkt, const void *data)
{
	if (likely(!(listening & LISTEN_TRACE)))
		return false;
	pkt->proto = *(const __u8 *)(data + L3 + (pkt->family == 4 ? offsetof(struct iphdr, protocol) :
								     offsetof(struct ipv6hdr, nexthdr)));
	return config.trace_all || !trace_is_data(skb, pkt);
}

/*
 * Whether the packet needs no more than the decision, which is for one like it. Reads the TTL from the packet again,
 * because there is no register for it during lookups. Cost: per packet.
 */
INLINE bool fast_applies(struct __sk_buff *skb, struct packet *pkt, const void *data, const struct path *p)
{
	__u32 at = L3 + (pkt->family == 4 ? offsetof(struct iphdr, ttl) : offsetof(struct ipv6hdr, hop_limit));

	if (pkt->hook == HOOK_FROM_POD && !path_mac_is(p, data + ETH_ALEN))
		return false;
	if (*(const __u8 *)(data + at) <= 1 || (p->mtu && skb->len - ETH_HLEN > p->mtu))
		return false;
	if (pkt->hook == HOOK_FROM_WIRE && tunnel_device(skb) && !tunnel_outer_is(skb, p->via.d[0], p->via.d[1]))
		return false;
	return !fast_traced(skb, pkt, data);
}

/* Decrements the TTL and writes the Ethernet header, as path_rewrite does. Cost: per packet. */
INLINE void fast_rewrite(struct __sk_buff *skb, void *data, const struct path *p, int family)
{
	packet_word *eth = data;

	if (family == 4) {
		ttl_word *word = data + L3 + offsetof(struct iphdr, ttl);
		/* Subtracts 1 from the first byte, which is at least 2, and adds 1 to the last two, as 0x0100. */
		__u64 sum = (__u64)*word + 0xffff;

		*word = sum + (sum >> 32 << 16);
	} else {
		((struct ipv6hdr *)(data + L3))->hop_limit--;
	}
	eth[0] = *(const packet_word *)&p->dmac;
	*(ttl_word *)(eth + 1) = *(const ttl_word *)((const void *)&p->dmac + sizeof(*eth));
	if (family == 6)
		bpf_csum_update(skb, bpf_htons(0xfffe)); /* see path_rewrite */
}

/* Forwards the packet. *verdict is set. Returns false if the full path is needed. Cost: per packet. */
INLINE bool fast_leave(struct __sk_buff *skb, void *data, const struct path *p, int family, __u32 hook, int *verdict)
{
	struct cpu *c = cpu_this();

	if (!c)
		return false;
	if (config.tunnel && hook == HOOK_FROM_POD && p->fast == PATH_TUNNEL &&
	    !tunnel_key_set_fast(skb, p->via.d[0], p->via.d[1]))
		return false;
	fast_rewrite(skb, data, p, family);
	if (hook == HOOK_FROM_WIRE && tunnel_device(skb))
		tunnel_receive(skb);
	if (hook == HOOK_FROM_WIRE || p->fast == PATH_POD)
		*verdict = path_leave(skb, c, p, PATH_POD, hook);
	else if (config.tunnel && p->fast == PATH_TUNNEL)
		*verdict = path_leave(skb, c, p, PATH_TUNNEL, hook);
	else
		*verdict = path_leave(skb, c, p, PATH_WIRE, hook);
	return true;
}

/* Whether the packet has no FIN, or no event must report the end of its flow. Cost: per packet. */
INLINE bool fast_fin(const struct packet *pkt)
{
	return likely(!(pkt->tcp_flags & TCP_FIN)) || !event_flow_wanted(EVENT_FLOW_END, NULL);
}

/*
 * Finds the copy of the packet's flow, as flow_cache_find does. IPv6 addresses are read from the packet again, because
 * there are no registers for them during the lookup. Cost: per packet.
 */
INLINE struct cached_flow *fast_flow_find(struct packet *pkt, const void *data, int family, int *direction)
{
	__u32 i = flow_cache_index(pkt);
	struct cached_flow *k = bpf_map_lookup_elem(&flow_cache, &i);

	if (family == 6)
		packet_read6(pkt, data + L3);
	if (likely(k && (*direction = cached_flow_direction(pkt, k)) != DIRECTION_NONE))
		return k;
	i ^= 1;
	k = bpf_map_lookup_elem(&flow_cache, &i);
	if (family == 6)
		packet_read6(pkt, data + L3);
	return k && (*direction = cached_flow_direction(pkt, k)) != DIRECTION_NONE ? k : NULL;
}

/* Forwards a packet of a flow that may be tracked, by its copy. Returns as fast_leave does. Cost: per packet. */
INLINE bool fast_flow(struct __sk_buff *skb, struct packet *pkt, void *data, int family, __u32 hook, int *verdict)
{
	struct cached_direction *w;
	struct cached_flow *k;
	int direction;

	if (!l4_peek(skb, pkt) || packet_changes_flow(pkt) || !fast_fin(pkt))
		return false;
	k = fast_flow_find(pkt, data, family, &direction);
	if (!k)
		return false;
	pkt->ifindex = skb->ifindex;
	w = cached_direction(k, direction);
	if (!w->path.fast || !cached_direction_usable(pkt, k, w) || !fast_applies(skb, pkt, data, &w->path))
		return false;
	cached_direction_count(skb, pkt, w);
	if (unlikely(pkt->tcp_flags & TCP_FIN))
		cached_flow_close(k);
	return fast_leave(skb, data, &w->path, family, hook, verdict);
}

/* Whether it is the entry of the packet. Cost: per packet. */
INLINE bool fast_path_matches(const struct __sk_buff *skb, const struct packet *pkt, const struct cached_path *p,
			      bool any)
{
	return path_matches(p, &pkt->src, &pkt->dst, skb->ifindex, any);
}

/*
 * Finds the packet's forwarding cache entry, also if it is outdated. Returns NULL if there is none. IPv6 addresses are
 * read from the packet again, because there are no registers for them during the lookup. Cost: per packet.
 */
INLINE struct cached_path *fast_path_find(const struct __sk_buff *skb, struct packet *pkt, const void *data, bool any)
{
	__u32 index = path_index(pkt, any);
	struct cached_path *p = bpf_map_lookup_elem(&paths, &index);

	if (pkt->family == 6)
		packet_read6(pkt, data + L3);
	if (likely(!p || fast_path_matches(skb, pkt, p, any)))
		return p;
	index ^= 1;
	p = bpf_map_lookup_elem(&paths, &index);
	if (pkt->family == 6)
		packet_read6(pkt, data + L3);
	return p && fast_path_matches(skb, pkt, p, any) ? p : NULL;
}

/* Forwards a packet by its forwarding cache entry. Returns as fast_leave does. Cost: per packet. */
INLINE bool fast_forward(struct __sk_buff *skb, int family, __u32 hook, bool any, int *verdict)
{
	struct packet pkt = { .hook = hook };
	void *data = (void *)(long)skb->data;
	struct cached_path *p;

	/* No lookup of the source: a helper's argument would have to be in memory, with all of pkt. */
	if (!fast_parse(skb, &pkt, data, family) ||
	    (hook == HOOK_FROM_WIRE && address_filter_has(&own_filter, &pkt.src)))
		return false;
	if (tracking)
		return fast_flow(skb, &pkt, data, family, hook, verdict);
	p = fast_path_find(skb, &pkt, data, any);
	if (!p || !p->path.fast || p->path.generation != epoch_generation() ||
	    clock_before(p->path.expires, clock_now()) || !fast_applies(skb, &pkt, data, &p->path))
		return false;
	return fast_leave(skb, data, &p->path, family, hook, verdict);
}

/*
 * Passes an outer packet to the node's stack if it is known to be for the node's own address (outer_store). Returns
 * false if the full path is needed. Cost: per outer packet.
 */
APART int fast_outer(struct __sk_buff *skb)
{
	struct packet pkt = { .hook = HOOK_FROM_WIRE };
	bool ipv4 = !config.outer6;
	struct cpu *c;

	if (skb->vlan_present || skb->protocol != (ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6)) ||
	    !fast_parse(skb, &pkt, (void *)(long)skb->data, ipv4 ? 4 : 6) ||
	    address_filter_has(&own_filter, &pkt.src) || !outer_is(skb, &pkt) || listening & LISTEN_TRACE ||
	    !outer_find(skb, &pkt))
		return false;
	c = cpu_this();
	if (!c)
		return false;
	count_at(c, HOOK_FROM_WIRE, FORWARD_STACK, skb->len);
	return true;
}

/*
 * Forwards a packet from a pod or from a wire if it needs nothing but a cached decision, and sets *verdict. Returns
 * false if it must take the full path. Cost: per packet.
 */
INLINE bool fast_receive(struct __sk_buff *skb, __u32 hook, bool any, int *verdict)
{
	if (unlikely(skb->vlan_present))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return fast_forward(skb, 4, hook, any, verdict);
	return skb->protocol == bpf_htons(ETH_P_IPV6) && fast_forward(skb, 6, hook, any, verdict);
}

#endif
