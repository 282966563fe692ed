/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ports, or the identifier of an ICMP echo in their place. Cost: per packet of flows with a conntrack entry. */
#ifndef MYELIN_L4_H
#define MYELIN_L4_H

#include "fragment.h"

/* Messages of neighbour discovery, first and last (RFC 4861 4). */
#define ICMPV6_ROUTER_SOLICITATION 133
#define ICMPV6_REDIRECT 137

#define L4_EXTENSIONS 6
#define L4_TCP_FLAGS 13 /* offset of the flags in a TCP header */

#define L4_TCP_SIZE 20   /* of the shortest TCP header */
#define L4_SCTP_SIZE 12
#define L4_SIZE 8 /* of a UDP header, and of an ICMP header with the identifier of an echo */

struct l4_head {
	__be16 word[4];
};

#define L4_TCP_TAIL 12      /* offset of the part of a TCP header that is read to find the timestamps option */
#define L4_TCP_TAIL_FIN 16  /* bytes read of a FIN: its timestamps option follows the fixed header */
#define L4_TCP_TAIL_SYN 24  /* bytes read of a SYN: other options come first */
#define L4_TCP_TAIL_WORDS 8 /* minimum length of a header with timestamps, in words */

/*
 * Returns TSval of the timestamps option (RFC 7323 3.2), or 0 if the option is in none of the usual places: after two
 * NOPs, as in all segments of common stacks except SYNs; in a SYN after MSS and either SACK-permitted or two NOPs, as
 * Linux sends it, or after MSS, NOP, window scale and two NOPs, as BSDs do.
 */
INLINE __u32 l4_tcp_timestamp(const __be32 *word, bool syn)
{
	if (*(const __u8 *)word >> 4 < L4_TCP_TAIL_WORDS)
		return 0;
	if (!syn)
		return word[2] == bpf_htonl(0x0101080a) ? bpf_ntohl(word[3]) : 0;
	if (word[3] == bpf_htonl(0x0402080a) || word[3] == bpf_htonl(0x0101080a))
		return bpf_ntohl(word[4]);
	return word[4] == bpf_htonl(0x0101080a) ? bpf_ntohl(word[5]) : 0;
}

/* The state of a walk over the headers between IP and layer 4. */
struct l4_walk {
	__u32 off;     /* offset of the header that proto names */
	__u32 start;   /* offset of the fragmentable part; 0: not a fragment */
	__be32 id;     /* identification of a fragment */
	__u16 offset;  /* of a later fragment in the fragmentable part, in bytes */
	__u8 proto;
	__u8 fragment; /* enum fragment */
	union {        /* one buffer for both, which saves stack */
		__u8 extension[8];
		struct l4_head head;
	};
};

/* Returns the drop reason for truncated headers: RFC 7112 requires all headers in the first fragment. */
INLINE enum next l4_short(const struct l4_walk *w)
{
	return w->fragment == FRAGMENT_FIRST ? DROP_FRAGMENT_SHORT : DROP_TRUNCATED;
}

/* Reads an IPv6 fragment header (RFC 8200 4.5). One with offset 0 and no more fragments is ignored (RFC 6946). */
INLINE void l4_walk_fragment(struct l4_walk *w, const __u8 *head)
{
	__u16 field = bpf_ntohs(*(__be16 *)&head[2]);

	w->id = *(__be32 *)&head[4];
	w->start = w->off + 8;
	w->offset = field & 0xfff8;
	if (w->offset)
		w->fragment = FRAGMENT_LATER;
	else if (field & 1)
		w->fragment = FRAGMENT_FIRST;
}

/* Whether proto is an extension header. The authentication header is one, because it encrypts nothing. */
INLINE bool l4_is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_FRAGMENT || proto == IPPROTO_AH;
}

/*
 * Walks IPv6 extension headers (RFC 8200 4.1) up to layer 4, or to the data of a later fragment. Returns NEXT_FORWARD
 * or a drop reason.
 */
INLINE enum next l4_walk6(struct __sk_buff *skb, const struct packet *pkt, struct l4_walk *w)
{
	__u8 *head = w->extension;
	int i;

	for (i = 0; i < L4_EXTENSIONS; i++) {
		if (!l4_is_extension(w->proto))
			return NEXT_FORWARD;
		if (!packet_load(skb, pkt, w->off, head, sizeof(w->extension)))
			return l4_short(w);
		if (w->proto == IPPROTO_FRAGMENT) {
			if (w->start)
				return DROP_EXTENSION_HEADERS; /* a fragment of a fragment */
			l4_walk_fragment(w, head);
			w->off += 8;
		} else if (w->proto == IPPROTO_AH) {
			w->off += (head[1] + 2) * 4; /* RFC 4302 2.2 */
		} else {
			w->off += (head[1] + 1) * 8;
		}
		w->proto = head[0];
		if (w->fragment == FRAGMENT_LATER)
			return NEXT_FORWARD;
	}
	return DROP_EXTENSION_HEADERS;
}

/* Finds layer 4 of an IPv4 packet. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next l4_walk4(struct __sk_buff *skb, struct l4_walk *w)
{
	struct iphdr *ip = (void *)(long)skb->data + L3;
	__u16 field;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return DROP_TRUNCATED;
	field = bpf_ntohs(ip->frag_off);
	w->off = L3 + ip->ihl * 4;
	w->id = ip->id;
	w->offset = (field & IP_OFFSET) * 8;
	if (w->offset)
		w->fragment = FRAGMENT_LATER;
	else if (field & IP_MF)
		w->fragment = FRAGMENT_FIRST;
	w->start = w->off;
	return NEXT_FORWARD;
}

/* Returns the request type for a reply type (RFC 792, RFC 950, RFC 4443), or the type itself. */
INLINE __u8 l4_icmp_question(__u8 family, __u8 type)
{
	if (family == 6)
		return type == ICMPV6_ECHO_REPLY ? ICMPV6_ECHO_REQUEST : type;
	if (type == ICMP_ECHOREPLY)
		return ICMP_ECHO;
	return type >= ICMP_TIMESTAMP && type <= ICMP_ADDRESSREPLY ? (type - 1) | 1 : type;
}

/*
 * An echo's identifier is the port of the side that sends the request, and the other port is 0. For other messages, the
 * type of the request is that port, so that each kind of request is a flow, and requests of both sides are two flows.
 */
INLINE void l4_icmp_ports(__u8 family, const __be16 *head, __be16 *sport, __be16 *dport)
{
	__u8 type = *(__u8 *)&head[0], request = l4_icmp_question(family, type);
	bool echo = request == (family == 4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST);
	__be16 port = echo ? head[2] : bpf_htons(request);

	*sport = type == request ? port : 0;
	*dport = type == request ? 0 : port;
}

INLINE bool proto_is_icmp(__u8 proto)
{
	return proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

/* Whether the packet is a reply to an ICMP request. */
INLINE bool l4_is_icmp_reply(const struct packet *pkt)
{
	return proto_is_icmp(pkt->proto) && l4_icmp_question(pkt->family, pkt->icmp_type) != pkt->icmp_type;
}

/* Whether the packet is an ICMP echo request or reply. */
INLINE bool l4_is_echo(const struct packet *pkt)
{
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->icmp_type == ICMPV6_ECHO_REQUEST || pkt->icmp_type == ICMPV6_ECHO_REPLY;
	return pkt->icmp_type == ICMP_ECHO || pkt->icmp_type == ICMP_ECHOREPLY;
}

/* Whether the packet is an ICMP error, or an IPv4 redirect. A later fragment has the type of its first one. */
INLINE bool l4_is_icmp_error(const struct packet *pkt)
{
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->icmp_type < 128;
	return pkt->proto == IPPROTO_ICMP &&
	       (pkt->icmp_type == ICMP_DEST_UNREACH || pkt->icmp_type == ICMP_REDIRECT ||
		pkt->icmp_type == ICMP_TIME_EXCEEDED || pkt->icmp_type == ICMP_PARAMETERPROB);
}

/* Reads the timestamp of a SYN or FIN. off: its TCP header. Cost: per SYN and FIN. */
INLINE void l4_read_timestamp(struct __sk_buff *skb, struct packet *pkt, __u32 off)
{
	bool syn = pkt->tcp_flags & TCP_SYN;
	__be32 word[L4_TCP_TAIL_SYN / 4];

	if (!config.masquerade4 && !config.masquerade6 && !config.services)
		return; /* without NAT ports, timestamps are not needed */
	off += L4_TCP_TAIL;
	pkt->timestamp = 0;
	if (syn ? packet_load(skb, pkt, off, word, L4_TCP_TAIL_SYN) :
		  packet_load(skb, pkt, off, word, L4_TCP_TAIL_FIN))
		pkt->timestamp = l4_tcp_timestamp(word, syn);
}

/* As l4_parse_plain, but without the timestamp of SYN and FIN. Cost: per packet. */
INLINE bool l4_peek(const struct __sk_buff *skb, struct packet *pkt)
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
		if (off + L4_TCP_SIZE > pkt->end || (void *)l4 + L4_TCP_FLAGS + 1 > end)
			return false;
		pkt->tcp_flags = *((__u8 *)l4 + L4_TCP_FLAGS);
	} else if (pkt->proto != IPPROTO_UDP || off + L4_SIZE > pkt->end || (void *)(l4 + 4) > end) {
		return false;
	}
	pkt->l4 = off;
	pkt->sport = l4[0];
	pkt->dport = l4[1];
	return true;
}

/*
 * Parses TCP and UDP after an IP header without options or extension headers by direct packet access, which covers
 * nearly all packets. Returns false for others. Cost: per packet.
 */
INLINE bool l4_parse_plain(struct __sk_buff *skb, struct packet *pkt)
{
	if (!l4_peek(skb, pkt))
		return false;
	if (unlikely(pkt->tcp_flags & (TCP_SYN | TCP_FIN)))
		l4_read_timestamp(skb, pkt, pkt->l4);
	return true;
}

/* Returns the minimum size of a layer-4 header in bytes; 0: the header is not parsed. */
INLINE __u32 l4_size(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return L4_TCP_SIZE;
	case IPPROTO_SCTP:
		return L4_SCTP_SIZE;
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return L4_SIZE;
	default:
		return 0;
	}
}

/* Reads the layer-4 header that the walk found into pkt. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next l4_read(struct __sk_buff *skb, struct packet *pkt, struct l4_walk *w)
{
	__u32 size = l4_size(w->proto);
	struct l4_head *h = &w->head;

	if (!size)
		return NEXT_FORWARD;
	if (w->off + size > pkt->end || bpf_skb_load_bytes(skb, w->off, h, sizeof(*h)))
		return l4_short(w);
	if (proto_is_icmp(w->proto)) {
		pkt->icmp_type = *(__u8 *)&h->word[0];
		l4_icmp_ports(pkt->family, h->word, &pkt->sport, &pkt->dport);
		return NEXT_FORWARD;
	}
	pkt->sport = h->word[0];
	pkt->dport = h->word[1];
	if (w->proto != IPPROTO_TCP)
		return NEXT_FORWARD;
	if (bpf_skb_load_bytes(skb, w->off + L4_TCP_FLAGS, &pkt->tcp_flags, 1))
		return DROP_TRUNCATED;
	if (pkt->tcp_flags & (TCP_SYN | TCP_FIN))
		l4_read_timestamp(skb, pkt, w->off);
	return NEXT_FORWARD;
}

/*
 * Fills in layer 4 of c->pkt; that of the first fragment for a later one. Returns NEXT_FORWARD or a drop reason. After
 * a drop reason, layer 4 stays unparsed, and another call has the same result.
 */
APART enum next l4_parse_any(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct l4_walk w = {};
	struct packet *pkt;
	enum next outcome;

	if (!c)
		return DROP_TRUNCATED;
	pkt = &c->pkt;
	w.off = L3 + sizeof(struct ipv6hdr);
	w.proto = pkt->proto;
	outcome = pkt->family == 4 ? l4_walk4(skb, &w) : l4_walk6(skb, pkt, &w);
	if (outcome)
		return outcome;
	outcome = w.fragment == FRAGMENT_LATER ? fragment_find(pkt, w.id, w.offset) : l4_read(skb, pkt, &w);
	if (outcome)
		return outcome;
	pkt->l4 = w.off;
	pkt->fragment = w.fragment;
	if (w.fragment == FRAGMENT_LATER)
		return NEXT_FORWARD;
	pkt->proto = w.proto;
	if (w.fragment == FRAGMENT_FIRST)
		fragment_store(pkt, w.id, w.off + l4_size(w.proto) - w.start);
	return NEXT_FORWARD;
}

/* Parses layer 4 of c->pkt, which pkt points to, unless that was done. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next l4_parse(struct __sk_buff *skb, const struct packet *pkt)
{
	return pkt->l4 ? NEXT_FORWARD : l4_parse_any(skb);
}

/* Like l4_parse, but inlined for what l4_parse_plain covers. Cost: per packet. */
INLINE enum next l4_parse_likely_plain(struct __sk_buff *skb, struct packet *pkt)
{
	return pkt->l4 || likely(l4_parse_plain(skb, pkt)) ? NEXT_FORWARD : l4_parse_any(skb);
}

/* Returns the layer-3 length of the largest packet that skb becomes on the wire: of GSO packets, that of a segment. */
INLINE __u32 l4_packet_size(const struct __sk_buff *skb, const struct packet *pkt)
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

#endif
