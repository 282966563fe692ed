/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR through networks that drop IP options or packets with foreign source addresses. Packets to the backend's node are
 * encapsulated in IPIP (RFC 2003, RFC 2473) or Geneve (RFC 8926), in their own family. Neither node needs a tunnel
 * device.
 */
#ifndef MYELIN_ENCAP_H
#define MYELIN_ENCAP_H

#include "nat_entry.h"
#include "service.h"
#include "../bpf/header.h"

#define GENEVE_PORT 6081
#define ENCAP_TTL 64

struct geneve_head {
	__be16 sport;
	__be16 dport;
	__be16 length;
	__be16 checksum; /* 0: none (RFC 6935) */
	__be16 version;  /* and flags and length of options, all 0 */
	__be16 type;     /* EtherType of the inner packet */
	__be32 vni;      /* in the upper 24 bits */
};

/* Returns the bytes between the outer IP header and the packet. */
INLINE __u32 encap_more(void)
{
	return config.lb_dispatch == DISPATCH_GENEVE ? sizeof(struct geneve_head) : 0;
}

INLINE __u32 encap_size(const struct packet *pkt)
{
	return (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + encap_more();
}

/*
 * Sets the outer source address: the node's own address, or one of the prefix configured for IPIP, so that receivers
 * spread flows over their queues by it.
 */
INLINE void encap_source(const struct cpu *c, __u32 hash, struct addr *a)
{
	__u32 host;

	*a = c->snat;
	if (config.lb_dispatch != DISPATCH_IPIP)
		return;
	if (c->pkt.family == 4 && config.rss4_bits) {
		host = config.rss4_bits < 32 ? hash & (0xffffffffu >> config.rss4_bits) : 0;
		a->d[0] = config.rss4.d[0];
		a->d[1] = config.rss4.d[1] | (__u64)bpf_htonl(host) << 32;
	} else if (c->pkt.family == 6 && config.rss6_bits) {
		host = config.rss6_bits <= 96 ? hash : 0;
		a->d[0] = config.rss6.d[0];
		a->d[1] = config.rss6.d[1] | (__u64)bpf_htonl(host) << 32;
	}
}

/* Fills in the outer header of an IPv4 packet with `inner` bytes and the given TOS. */
INLINE void encap_header4(struct iphdr *ip, const struct addr *src, const struct addr *dst, __u16 inner, __u8 tos,
			  __u8 ttl)
{
	__u32 more = encap_more();

	header4(ip, src, dst, inner + sizeof(*ip) + more, more ? IPPROTO_UDP : IPPROTO_IPIP, ttl, tos);
}

/* Fills in the outer header of an IPv6 packet with `inner` bytes. */
INLINE void encap_header6(struct ipv6hdr *ip, const struct addr *src, const struct addr *dst, __u16 inner, __u8 ttl)
{
	__u32 more = encap_more();

	header6(ip, src, dst, inner + more, more ? IPPROTO_UDP : IPPROTO_IPV6, ttl);
}

/* Fills in the UDP and Geneve headers of a packet with `inner` bytes. */
INLINE void encap_header_geneve(struct geneve_head *g, bool ipv4, __u32 hash, __u16 inner)
{
	__builtin_memset(g, 0, sizeof(*g));
	g->sport = bpf_htons(0xc000 | (hash & 0x3fff));
	g->dport = bpf_htons(GENEVE_PORT);
	g->length = bpf_htons(inner + sizeof(*g));
	g->type = bpf_htons(ipv4 ? ETH_P_IP : ETH_P_IPV6);
	g->vni = bpf_htonl(config.vni << 8);
}

/* Writes the outer IP header. */
INLINE bool encap_write(struct __sk_buff *skb, const struct cpu *c, const struct addr *src, __u16 inner, __u8 tos)
{
	struct ipv6hdr ip6;
	struct iphdr ip4;

	if (c->pkt.family == 4) {
		encap_header4(&ip4, src, &c->to.via, inner, tos, ENCAP_TTL);
		return !bpf_skb_store_bytes(skb, L3, &ip4, sizeof(ip4), 0);
	}
	encap_header6(&ip6, src, &c->to.via, inner, ENCAP_TTL);
	return !bpf_skb_store_bytes(skb, L3, &ip6, sizeof(ip6), 0);
}

INLINE bool encap_write_geneve(struct __sk_buff *skb, const struct packet *pkt, __u32 hash, __u16 inner)
{
	struct geneve_head g;

	encap_header_geneve(&g, pkt->family == 4, hash, inner);
	return !bpf_skb_store_bytes(skb, L3 + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)), &g,
				    sizeof(g), 0);
}

/* Reads the inner packet's length and, of IPv4, its TOS. */
INLINE bool encap_inner(struct __sk_buff *skb, const struct packet *pkt, __u16 *length, __u8 *tos)
{
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (pkt->family == 4) {
		if (bpf_skb_load_bytes(skb, L3, &ip, sizeof(ip)))
			return false;
		*length = bpf_ntohs(ip.tot_len);
		*tos = ip.tos;
		return true;
	}
	if (bpf_skb_load_bytes(skb, L3, &ip6, sizeof(ip6)))
		return false;
	*length = bpf_ntohs(ip6.payload_len) + sizeof(ip6);
	return true;
}

/*
 * Encapsulates the packet, which has been rewritten, for the node c->to.via. Returns 1, or 0 if the kernel refuses.
 * Cost: per packet of such a flow.
 */
APART int encap_push(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u64 flags = 0;
	struct addr src;
	__u32 hash, more;
	__u16 inner = 0;
	__u8 tos = 0;

	if (!c || !encap_inner(skb, &c->pkt, &inner, &tos))
		return 0;
	more = encap_more();
	hash = service_hash(&c->pkt);
	encap_source(c, hash, &src);
	flags = c->pkt.family == 4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	if (more)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (bpf_skb_adjust_room(skb, encap_size(&c->pkt), BPF_ADJ_ROOM_MAC, flags))
		return 0;
	if (!encap_write(skb, c, &src, inner, tos))
		return 0;
	return !more || encap_write_geneve(skb, &c->pkt, hash, inner);
}

/* Whether the packet, which is for this node, is an encapsulated one. Cost: per packet, if DSR encapsulates. */
INLINE bool encap_is(struct __sk_buff *skb, const struct packet *pkt)
{
	struct geneve_head g;

	if (config.lb_dispatch == DISPATCH_IPIP)
		return pkt->proto == (pkt->family == 4 ? IPPROTO_IPIP : IPPROTO_IPV6);
	if (pkt->proto != IPPROTO_UDP ||
	    !packet_load(skb, pkt, L3 + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)), &g,
			 sizeof(g)))
		return false;
	return g.dport == bpf_htons(GENEVE_PORT) && g.vni == bpf_htonl(config.vni << 8) &&
	       g.type == skb->protocol && !g.version;
}

/* Whether the source is in the IPv6 prefix that senders of IPIP use, of 1 to 128 bits. */
INLINE bool encap_from_rss6(const struct addr *src)
{
	__u64 upper = bpf_be64_to_cpu(src->d[0] ^ config.rss6.d[0]);
	__u64 lower = bpf_be64_to_cpu(src->d[1] ^ config.rss6.d[1]);

	if (config.rss6_bits <= 64)
		return !(upper >> (64 - config.rss6_bits));
	return !upper && !(lower >> (128 - config.rss6_bits));
}

/* Whether the outer packet is for this node and comes from a node of the cluster. */
INLINE bool encap_trusted(const struct packet *pkt)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &pkt->dst);
	struct prefix *p;

	if (!e || !(e->flags & ENDPOINT_HOST))
		return false;
	if (config.lb_dispatch == DISPATCH_IPIP && pkt->family == 4 && config.rss4_bits)
		return !((bpf_ntohl(pkt->src.w[3]) ^ bpf_ntohl(config.rss4.w[3])) & ~(0xffffffffu >> config.rss4_bits));
	if (config.lb_dispatch == DISPATCH_IPIP && pkt->family == 6 && config.rss6_bits)
		return encap_from_rss6(&pkt->src);
	p = prefix_find(&pkt->src);
	return p && p->flags & PREFIX_NODE;
}

/*
 * Decapsulates the packet and parses the inner one. Returns NEXT_FORWARD, also if the outer packet is not trusted and
 * remains, or a drop reason.
 */
APART enum next encap_pull(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || !encap_trusted(&c->pkt))
		return NEXT_FORWARD;
	if (bpf_skb_adjust_room(skb, -(int)encap_size(&c->pkt), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return DROP_REWRITE;
	c->unwrapped = true;
	switch (packet_parse(skb, &c->pkt, HOOK_FROM_WIRE)) {
	case PARSED_IP:
		return address_own(&c->pkt.src) ? DROP_SPOOFED_OWN : NEXT_FORWARD;
	case PARSED_TRUNCATED:
		return DROP_TRUNCATED;
	default:
		return DROP_BAD_HEADER;
	}
}

#endif
