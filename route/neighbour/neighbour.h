/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers ARP requests (RFC 826) and neighbour solicitations (RFC 4861) of pods for the gateway, and keeps neighbour
 * discovery of pods from the host's stack. Slow path.
 */
#ifndef MYELIN_NEIGHBOUR_H
#define MYELIN_NEIGHBOUR_H

#include "../../endpoint/endpoint.h"
#include "../../bpf/icmp/icmp.h"

#define ND_ROUTER_SOLICIT 133
#define ND_NEIGHBOUR_SOLICIT 135
#define ND_NEIGHBOUR_ADVERT 136
#define ND_REDIRECT 137
#define ND_OPTION_SOURCE 1
#define ND_OPTION_TARGET 2

#define ARP_REQUEST 1
#define ARP_REPLY 2

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 sizes[2];
	__be16 operation;
	struct mac sender_mac;
	__u8 sender[4];
	struct mac target_mac;
	__u8 target[4];
} __attribute__((packed));

#define ND_ADVERT_FLAGS 0xe0000000 /* router, solicited, override */

struct nd {
	struct icmp_head head;
	struct addr target;
	__u8 option;        /* ND_OPTION_SOURCE or ND_OPTION_TARGET */
	__u8 option_length; /* in units of 8 bytes */
	struct mac mac;
};

/* Whether the frame's source MAC is the pod's. */
INLINE bool neighbour_frame_right(struct __sk_buff *skb, const struct pod_link *l)
{
	struct mac source;

	return !bpf_skb_load_bytes(skb, ETH_ALEN, &source, sizeof(source)) && mac_equal(&l->endpoint.pod_mac, source.b);
}

/* Answers a pod's ARP request for the gateway, and drops other ARP. Returns a verdict. */
APART int neighbour_arp(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct pod_link *l;
	struct addr gateway;
	struct arp a;
	__be32 sender;

	if (!c)
		return TC_ACT_SHOT;
	l = bpf_map_lookup_elem(&pod_links, &c->pkt.ifindex);
	if (!l)
		return drop(skb, c, DROP_NO_ENDPOINT);
	c->pkt.slot = l->endpoint.slot;
	if (!neighbour_frame_right(skb, l))
		return drop(skb, c, DROP_SPOOFED_MAC);
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &a, sizeof(a)))
		return drop(skb, c, DROP_TRUNCATED);
	if (a.operation != bpf_htons(ARP_REQUEST) || a.protocol != bpf_htons(ETH_P_IP))
		return drop(skb, c, DROP_ARP_TARGET);
	__builtin_memcpy(&sender, a.sender, 4);
	/* Sender 0.0.0.0: an ARP probe (RFC 5227). */
	if (!mac_equal(&l->endpoint.pod_mac, a.sender_mac.b) || (sender && sender != l->addr4.w[3]))
		return drop(skb, c, DROP_SPOOFED_ARP);
	gateway_addr(&gateway, false);
	if (__builtin_memcmp(a.target, &gateway.w[3], 4))
		return drop(skb, c, DROP_ARP_TARGET);

	a.operation = bpf_htons(ARP_REPLY);
	a.target_mac = a.sender_mac;
	__builtin_memcpy(a.target, a.sender, 4);
	a.sender_mac = l->endpoint.link_mac;
	__builtin_memcpy(a.sender, &gateway.w[3], 4);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &a, sizeof(a), 0) ||
	    bpf_skb_store_bytes(skb, 0, &a.target_mac, ETH_ALEN, 0) ||
	    bpf_skb_store_bytes(skb, ETH_ALEN, &a.sender_mac, ETH_ALEN, 0))
		return drop(skb, c, DROP_REWRITE);
	count(skb, c, REPLY_ARP);
	return bpf_redirect(skb->ifindex, 0);
}

/* Turns the solicitation into an advertisement. Returns false if the kernel refuses. */
INLINE bool neighbour_advertise(struct __sk_buff *skb, const struct packet *pkt, const struct pod_link *l)
{
	struct ipv6hdr ip = { .version = 6, .nexthdr = IPPROTO_ICMPV6, .hop_limit = 255 };
	struct nd na = { .head.type = ND_NEIGHBOUR_ADVERT, .option = ND_OPTION_TARGET, .option_length = 1 };
	__u64 sum;

	na.head.word = bpf_htonl(ND_ADVERT_FLAGS);
	gateway_addr(&na.target, true);
	na.mac = l->endpoint.link_mac;
	ip.payload_len = bpf_htons(sizeof(na));
	__builtin_memcpy(&ip.saddr, &na.target, 16);
	__builtin_memcpy(&ip.daddr, &pkt->src, 16);
	sum = (__u32)bpf_csum_diff(0, 0, (__be32 *)&ip.saddr, 32, 0);
	sum += bpf_htonl(sizeof(na)) + (__u64)bpf_htonl(IPPROTO_ICMPV6);
	sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)&na, sizeof(na), 0);
	na.head.checksum = csum_fold(sum);

	return !bpf_skb_change_tail(skb, ETH_HLEN + sizeof(ip) + sizeof(na), 0) &&
	       !bpf_skb_store_bytes(skb, L3, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(ip), &na, sizeof(na), 0) &&
	       !bpf_skb_store_bytes(skb, 0, &l->endpoint.pod_mac, ETH_ALEN, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_ALEN, &l->endpoint.link_mac, ETH_ALEN, 0);
}

/*
 * Whether a pod may use the source address in neighbour discovery: its own, or any link-local one, as those never leave
 * the link.
 */
INLINE bool neighbour_source_right(const struct pod_link *l, const struct addr *a)
{
	return addr_equal(a, &l->addr6) || (a->b[0] == 0xfe && (a->b[1] & 0xc0) == 0x80);
}

/*
 * Handles a pod's ICMPv6 packet: answers solicitations for the gateway, and drops all other neighbour and router
 * discovery. Returns a verdict, or TC_ACT_UNSPEC for other ICMPv6.
 */
APART int neighbour_nd(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct pod_link *l;
	struct packet *pkt;
	struct addr gateway;
	struct nd ns = {};

	if (!c)
		return TC_ACT_SHOT;
	pkt = &c->pkt;
	if (!packet_load(skb, pkt, L3 + sizeof(struct ipv6hdr), &ns.head, sizeof(ns.head)))
		return drop(skb, c, DROP_TRUNCATED);
	if (ns.head.type < ND_ROUTER_SOLICIT || ns.head.type > ND_REDIRECT)
		return TC_ACT_UNSPEC;
	l = bpf_map_lookup_elem(&pod_links, &pkt->ifindex);
	if (!l)
		return drop(skb, c, DROP_NO_ENDPOINT);
	pkt->slot = l->endpoint.slot;
	if (!neighbour_frame_right(skb, l))
		return drop(skb, c, DROP_SPOOFED_MAC);
	if (ns.head.type != ND_NEIGHBOUR_SOLICIT)
		return drop(skb, c, ns.head.type == ND_NEIGHBOUR_ADVERT ? DROP_SPOOFED_ND : DROP_ND_TYPE);
	if (!packet_load(skb, pkt, L3 + sizeof(struct ipv6hdr), &ns, offsetof(struct nd, option)))
		return drop(skb, c, DROP_TRUNCATED);
	if (pkt->ttl != 255)
		return drop(skb, c, DROP_SPOOFED_ND);
	gateway_addr(&gateway, true);
	if (!addr_equal(&ns.target, &gateway))
		return drop(skb, c, DROP_ND_TARGET);
	if (!neighbour_source_right(l, &pkt->src))
		return drop(skb, c, DROP_SPOOFED_ND);
	packet_load(skb, pkt, L3 + sizeof(struct ipv6hdr) + offsetof(struct nd, option), &ns.option, 8);
	if (ns.option == ND_OPTION_SOURCE && !mac_equal(&ns.mac, l->endpoint.pod_mac.b))
		return drop(skb, c, DROP_SPOOFED_ND);
	if (!neighbour_advertise(skb, pkt, l))
		return drop(skb, c, DROP_REWRITE);
	count(skb, c, REPLY_ND);
	return bpf_redirect(skb->ifindex, 0);
}

/* Whether neighbour discovery may be behind extension headers of the packet, where neighbour_nd does not see it. */
INLINE bool neighbour_may_hide(const struct packet *pkt)
{
	if (pkt->family != 6)
		return false;
	/* l4_parse replaces proto by the protocol behind the extension headers. */
	return l4_is_extension(pkt->proto) || (pkt->proto == IPPROTO_ICMPV6 && pkt->l4 > L3 + sizeof(struct ipv6hdr));
}

/*
 * Drops a pod's packet to the host's stack if it is neighbour or router discovery behind extension headers, in a
 * fragment too (RFC 6980): the stack would accept it. A packet that can't be parsed is dropped as well, except a later
 * fragment whose first one is unknown: the first one decides whether the stack gets a whole packet. Returns 0 or a
 * verdict. Cost: per packet with extension headers from a pod to the host.
 */
APART int neighbour_refuse_hidden(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct pod_link *l;
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	l = bpf_map_lookup_elem(&pod_links, &c->pkt.ifindex);
	if (l)
		c->pkt.slot = l->endpoint.slot;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome == DROP_FRAGMENT_FIRST_MISSING)
		return 0;
	if (!outcome && c->pkt.proto == IPPROTO_ICMPV6 && c->pkt.icmp_type >= ND_ROUTER_SOLICIT &&
	    c->pkt.icmp_type <= ND_REDIRECT)
		outcome = DROP_ND_TYPE;
	return outcome ? drop(skb, c, outcome) : 0;
}

#endif
