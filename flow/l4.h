/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ports, or what stands for them: the identifier of an ICMP echo. Cost: per packet of what has a flow row. */
#ifndef MYELIN_L4_H
#define MYELIN_L4_H

#include "../bpf/cpu.h"
#include "../fragment/fragment.h"

#define L4_EXTENSIONS 6
#define L4_TCP_FLAGS 13 /* offset of the flags in a TCP header */

struct l4_head {
	__be16 word[4];
};

/* What a walk over IPv6 extension headers finds. */
struct l4_walk {
	__u32 off; /* of the header that proto names */
	__be32 id; /* of a fragment */
	__u8 proto;
	__u8 fragment;
};

/* Walks IPv6 extension headers (RFC 8200 4.1). Returns 0 or a drop reason. */
INLINE int l4_walk6(struct __sk_buff *skb, struct l4_walk *w)
{
	__u8 head[8];
	int i;

	for (i = 0; i < L4_EXTENSIONS; i++) {
		if (w->proto != IPPROTO_HOPOPTS && w->proto != IPPROTO_ROUTING && w->proto != IPPROTO_DSTOPTS && w->proto != IPPROTO_FRAGMENT)
			return 0;
		if (bpf_skb_load_bytes(skb, w->off, head, sizeof(head)))
			return DROP_TRUNCATED;
		if (w->proto == IPPROTO_FRAGMENT) {
			__be16 field = *(__be16 *)&head[2];

			w->id = *(__be32 *)&head[4];
			if (field & bpf_htons(0xfff8))
				w->fragment = FRAGMENT_LATER;
			else if (field & bpf_htons(1))
				w->fragment = FRAGMENT_FIRST;
			w->off += 8;
		} else {
			w->off += (head[1] + 1) * 8;
		}
		w->proto = head[0];
	}
	return DROP_EXTENSION_HEADERS;
}

INLINE int l4_find6(struct __sk_buff *skb, struct packet *pkt, __be32 *id)
{
	struct l4_walk w = { .off = L3 + sizeof(struct ipv6hdr), .proto = pkt->proto };
	int outcome = l4_walk6(skb, &w);

	if (outcome)
		return outcome;
	*id = w.id;
	pkt->l4 = w.off;
	pkt->proto = w.proto;
	pkt->fragment = w.fragment;
	return 0;
}

INLINE int l4_find4(struct __sk_buff *skb, struct packet *pkt, __be32 *id)
{
	struct iphdr *ip = (void *)(long)skb->data + L3;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return DROP_TRUNCATED;
	pkt->l4 = L3 + ip->ihl * 4;
	*id = ip->id;
	if (ip->frag_off & bpf_htons(IP_OFFSET))
		pkt->fragment = FRAGMENT_LATER;
	else if (ip->frag_off & bpf_htons(IP_MF))
		pkt->fragment = FRAGMENT_FIRST;
	return 0;
}

/* The type that asks for what a type answers (RFC 792, RFC 950, RFC 4443), or the type itself. */
INLINE __u8 l4_icmp_question(__u8 family, __u8 type)
{
	if (family == 6)
		return type == ICMPV6_ECHO_REPLY ? ICMPV6_ECHO_REQUEST : type;
	if (type == ICMP_ECHOREPLY)
		return ICMP_ECHO;
	return type >= ICMP_TIMESTAMP && type <= ICMP_ADDRESSREPLY ? (type - 1) | 1 : type;
}

/* An echo's identifier is the port of the side that asks. Another type stands for both ports, so that each question is a flow of its own. */
INLINE void l4_icmp_ports(__u8 family, const __be16 *head, __be16 *sport, __be16 *dport)
{
	__u8 type = *(__u8 *)&head[0], asks = l4_icmp_question(family, type);
	bool echo = asks == (family == 4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST);
	__be16 port = bpf_htons(asks);

	*sport = !echo ? port : type == asks ? head[2] : 0;
	*dport = !echo ? port : type == asks ? 0 : head[2];
}

INLINE bool proto_is_icmp(__u8 proto)
{
	return proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

/* True for an echo request or its reply. */
INLINE bool l4_is_echo(const struct packet *pkt)
{
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->icmp_type == ICMPV6_ECHO_REQUEST || pkt->icmp_type == ICMPV6_ECHO_REPLY;
	return pkt->icmp_type == ICMP_ECHO || pkt->icmp_type == ICMP_ECHOREPLY;
}

/* True for an ICMP message that reports on another packet. Of a fragment that is not the first, the type is not known. */
INLINE bool l4_is_icmp_error(const struct packet *pkt)
{
	if (pkt->fragment == FRAGMENT_LATER)
		return false;
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->icmp_type < 128;
	return pkt->proto == IPPROTO_ICMP &&
	       (pkt->icmp_type == ICMP_DEST_UNREACH || pkt->icmp_type == ICMP_REDIRECT || pkt->icmp_type == ICMP_TIME_EXCEEDED || pkt->icmp_type == ICMP_PARAMETERPROB);
}

/* TCP and UDP behind a plain header, read where they lie: what nearly all packets are. True if that was it. Cost: per packet. */
INLINE bool l4_parse_plain(struct __sk_buff *skb, struct packet *pkt)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 off = L3 + sizeof(struct ipv6hdr);
	__be16 *l4;

	if (pkt->family == 4) {
		struct iphdr *ip = data + L3;

		off = L3 + sizeof(*ip);
		if ((void *)(ip + 1) > end || ip->ihl != 5 || ip->frag_off & bpf_htons(IP_MF | IP_OFFSET))
			return false;
	}
	l4 = data + off;
	if (pkt->proto == IPPROTO_TCP) {
		if ((void *)l4 + L4_TCP_FLAGS + 1 > end)
			return false;
		pkt->tcp_flags = *((__u8 *)l4 + L4_TCP_FLAGS);
	} else if (pkt->proto != IPPROTO_UDP || (void *)(l4 + 4) > end) {
		return false;
	}
	pkt->l4 = off;
	pkt->sport = l4[0];
	pkt->dport = l4[1];
	return true;
}

/* Fills in proto, ports and flags of the CPU's packet. Returns 0 or a drop reason. */
APART int l4_parse_any(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct packet *pkt;
	struct l4_head h;
	__be32 id = 0;
	int outcome;

	if (!c)
		return DROP_TRUNCATED;
	pkt = &c->pkt;
	outcome = pkt->family == 4 ? l4_find4(skb, pkt, &id) : l4_find6(skb, pkt, &id);
	if (outcome)
		return outcome;
	if (!proto_has_ports(pkt->proto) && !proto_is_icmp(pkt->proto))
		return 0;
	if (pkt->fragment == FRAGMENT_LATER)
		return fragment_find(pkt, id);
	if (bpf_skb_load_bytes(skb, pkt->l4, &h, sizeof(h)))
		return DROP_TRUNCATED;
	if (proto_is_icmp(pkt->proto)) {
		pkt->icmp_type = *(__u8 *)&h.word[0];
		l4_icmp_ports(pkt->family, h.word, &pkt->sport, &pkt->dport);
	} else {
		pkt->sport = h.word[0];
		pkt->dport = h.word[1];
	}
	if (pkt->proto == IPPROTO_TCP && bpf_skb_load_bytes(skb, pkt->l4 + L4_TCP_FLAGS, &pkt->tcp_flags, 1))
		return DROP_TRUNCATED;
	if (pkt->fragment == FRAGMENT_FIRST)
		fragment_keep(pkt, id);
	return 0;
}

/* … once. */
INLINE int l4_parse(struct __sk_buff *skb, const struct packet *pkt)
{
	return pkt->l4 ? 0 : l4_parse_any(skb);
}

#endif
