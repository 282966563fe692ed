/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parsing the packet that an ICMP error quotes. Slow path. */
#ifndef MYELIN_INNER_H
#define MYELIN_INNER_H

#include "l4.h"

/* Parses the quoted IPv4 header. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next inner_parse4(struct __sk_buff *skb, const struct packet *pkt, struct inner *in)
{
	struct iphdr ip;

	if (!packet_load(skb, pkt, in->l3, &ip, sizeof(ip)))
		return DROP_TRUNCATED;
	if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(IP_OFFSET))
		return DROP_ICMP_UNRELATED; /* a later fragment doesn't identify its flow */
	addr_map4(&in->src, ip.saddr);
	addr_map4(&in->dst, ip.daddr);
	in->proto = ip.protocol;
	in->l4 = in->l3 + ip.ihl * 4;
	return NEXT_FORWARD;
}

/* Parses the quoted IPv6 header and its extension headers. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next inner_parse6(struct __sk_buff *skb, const struct packet *pkt, struct inner *in)
{
	struct l4_walk w = { .off = in->l3 + sizeof(struct ipv6hdr) };
	enum next outcome;

	if (!packet_load(skb, pkt, in->l3 + offsetof(struct ipv6hdr, saddr), &in->src, 2 * sizeof(struct addr)) ||
	    !packet_load(skb, pkt, in->l3 + offsetof(struct ipv6hdr, nexthdr), &w.proto, 1))
		return DROP_TRUNCATED;
	outcome = l4_walk6(skb, pkt, &w);
	if (!outcome && w.fragment == FRAGMENT_LATER)
		return DROP_ICMP_UNRELATED;
	in->proto = w.proto;
	in->l4 = w.off;
	return outcome;
}

/*
 * Parses the packet that the ICMP error in c->pkt quotes into c->inner. Returns NEXT_FORWARD or a drop reason. Slow
 * path.
 */
APART enum next inner_parse(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct inner *in;
	__be16 words[4];
	enum next outcome;

	if (!c)
		return DROP_TRUNCATED;
	if (c->pkt.fragment != FRAGMENT_NONE)
		return DROP_ICMP_UNRELATED; /* ICMP errors are too short to need fragmentation */
	in = &c->inner;
	in->l3 = c->pkt.l4 + 8;
	outcome = c->pkt.family == 4 ? inner_parse4(skb, &c->pkt, in) : inner_parse6(skb, &c->pkt, in);
	if (outcome)
		return outcome;
	in->sport = 0;
	in->dport = 0;
	if (!proto_has_ports(in->proto) && !proto_is_icmp(in->proto))
		return NEXT_FORWARD;
	if (!packet_load(skb, &c->pkt, in->l4, words, sizeof(words)))
		return DROP_TRUNCATED;
	in->sport = words[0];
	in->dport = words[1];
	if (proto_is_icmp(in->proto))
		l4_icmp_ports(c->pkt.family, words, &in->sport, &in->dport);
	return NEXT_FORWARD;
}

#endif
