/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Services of one family with backends of the other: stateful NAT between IPv4 and IPv6 (RFC 7915, RFC 6146) for TCP
 * and UDP.
 */
#ifndef MYELIN_CROSS_H
#define MYELIN_CROSS_H

#include "cross_ipv4.h"
#include "nat_entry.h"
#include "../bpf/header.h"

#define CROSS_GROWS (sizeof(struct ipv6hdr) - sizeof(struct iphdr))

/* Whether the packet changes its family. */
INLINE bool cross_family(const struct cpu *c)
{
	return addr_is4(&c->to.dst) != (c->pkt.family == 4);
}

/*
 * Whether the packet can be translated: it is not a fragment and has no IPv6 extension headers (their number is
 * unbounded).
 */
INLINE bool cross_able(const struct packet *pkt)
{
	return pkt->fragment == FRAGMENT_NONE && (pkt->proto == IPPROTO_TCP || pkt->proto == IPPROTO_UDP) &&
	       (pkt->family == 4 || pkt->l4 == L3 + sizeof(struct ipv6hdr));
}

INLINE bool cross_has_options(const struct packet *pkt)
{
	return pkt->family == 4 && pkt->l4 != L3 + sizeof(struct iphdr);
}

/* Returns the drop reason of a packet that could not be translated to the other family. */
INLINE enum next cross_reason(const struct packet *pkt)
{
	if (pkt->fragment != FRAGMENT_NONE)
		return DROP_CROSS_FRAGMENT;
	return cross_able(pkt) && cross_has_options(pkt) ? DROP_CROSS_OPTIONS : DROP_CROSS_FAMILY;
}

/* Whether the datagram has no checksum, which IPv6 does not allow (RFC 8200 8.1). */
INLINE bool cross_lacks_checksum(struct __sk_buff *skb, const struct packet *pkt)
{
	__u16 check = 0;

	return pkt->proto == IPPROTO_UDP &&
	       (!packet_load(skb, pkt, pkt->l4 + nat_l4_checksum(pkt->proto), &check, sizeof(check)) || !check);
}

/* Fills in the IPv6 header that replaces the IPv4 header ip. */
INLINE void cross_head6(struct ipv6hdr *ip6, const struct iphdr *ip, const struct packet *pkt, const struct rewrite *to)
{
	header6(ip6, &to->src, &to->dst, bpf_ntohs(ip->tot_len) - sizeof(*ip), pkt->proto, pkt->ttl);
	ip6->priority = ip->tos >> 4;
	ip6->flow_lbl[0] = ip->tos << 4;
}

/*
 * Fills in the IPv4 header that replaces the IPv6 header ip6. DF is set, so that no identification is needed (RFC 6864
 * 4.1): IPv6 senders do path MTU discovery themselves.
 */
INLINE void cross_head4(struct iphdr *ip, const struct ipv6hdr *ip6, const struct packet *pkt, const struct rewrite *to)
{
	header4(ip, &to->src, &to->dst, bpf_ntohs(ip6->payload_len) + sizeof(*ip), pkt->proto, pkt->ttl,
		ip6->priority << 4 | ip6->flow_lbl[0] >> 4);
}

INLINE bool cross_write6(struct __sk_buff *skb, const struct packet *pkt, const struct rewrite *to)
{
	__be16 type = bpf_htons(ETH_P_IPV6);
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, L3, &ip, sizeof(ip)) || !ip.tot_len || bpf_skb_change_proto(skb, type, 0))
		return false; /* a BIG TCP packet would need a hop-by-hop option */
	cross_head6(&ip6, &ip, pkt, to);
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0) &&
	       !bpf_skb_store_bytes(skb, L3, &ip6, sizeof(ip6), 0);
}

INLINE bool cross_write4(struct __sk_buff *skb, const struct packet *pkt, const struct rewrite *to)
{
	__be16 type = bpf_htons(ETH_P_IP);
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, L3, &ip6, sizeof(ip6)) || !ip6.payload_len || bpf_skb_change_proto(skb, type, 0))
		return false;
	cross_head4(&ip, &ip6, pkt, to);
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0) &&
	       !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0);
}

/* Returns the checksum difference of the pseudo header. */
INLINE __s64 cross_diff(const struct packet *pkt, const struct rewrite *to)
{
	struct addr from6[2] = { pkt->src, pkt->dst }, to6[2] = { to->src, to->dst };
	__be32 from4[2] = { pkt->src.w[3], pkt->dst.w[3] }, to4[2] = { to->src.w[3], to->dst.w[3] };

	if (pkt->family == 4)
		return bpf_csum_diff(from4, sizeof(from4), (__be32 *)to6, sizeof(to6), 0);
	return bpf_csum_diff((__be32 *)from6, sizeof(from6), to4, sizeof(to4), 0);
}

/*
 * Translates the packet to the other family, with the addresses and ports in c->to. Returns 1, or 0 if that is
 * impossible. Cost: per packet of such a flow.
 */
APART int cross_write(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct packet *pkt;
	bool no_checksum;
	__u64 flags;
	__s64 diff;

	if (!c)
		return 0;
	pkt = &c->pkt;
	if (!cross_able(pkt) || (cross_has_options(pkt) && !cross_strip(skb)))
		return 0;
	no_checksum = pkt->family == 4 && cross_lacks_checksum(skb, pkt);
	if (!nat_write_port(skb, pkt, true, pkt->sport, c->to.sport) ||
	    !nat_write_port(skb, pkt, false, pkt->dport, c->to.dport))
		return 0;
	if (no_checksum && !cross_checksum(skb))
		return 0;
	diff = cross_diff(pkt, &c->to);
	if (!(pkt->family == 4 ? cross_write6(skb, pkt, &c->to) : cross_write4(skb, pkt, &c->to)))
		return 0;
	pkt->l4 += pkt->family == 4 ? CROSS_GROWS : -CROSS_GROWS;
	pkt->family = pkt->family == 4 ? 6 : 4;
	if (no_checksum)
		return 1;
	flags = BPF_F_PSEUDO_HDR | (pkt->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
	return !bpf_l4_csum_replace(skb, pkt->l4 + nat_l4_checksum(pkt->proto), 0, diff, flags);
}

#endif
