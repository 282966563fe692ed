/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A parsed packet. Layer 3 is parsed for every packet, layer 4 only where ports are needed. */
#ifndef MYELIN_PACKET_H
#define MYELIN_PACKET_H

#include "common.h"

#define L3 ETH_HLEN
#define PACKET_HOST 0 /* linux/if_packet.h */

enum fragment {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

struct packet {
	struct addr src;
	struct addr dst;
	__be16 sport; /* the identifier of an ICMP echo request */
	__be16 dport; /* the identifier of an ICMP echo reply */
	__u16 l4;     /* offset of the layer-4 header; 0 until it is parsed, and if that failed */
	__u16 slot;   /* the pod's endpoint, 0 until it is known */
	__u8 hook;    /* enum hook */
	__u8 family;  /* 4, 6, 0 */
	__u8 proto;   /* the IP header's next header until layer 4 is parsed */
	__u8 ttl;
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 fragment; /* enum fragment */
	__u8 for_host; /* true: ICMP errors about the packet are sent from its destination address */
	__u32 ifindex; /* packet_reset zeroes the fields from sport up to here */
	__u32 end;     /* offset of the end of the IP packet: what follows is padding, and is never read */
	__u32 timestamp; /* TSval (RFC 7323) of a TCP SYN or FIN, 0 if it has none; not set for other packets */
};

/* The packet that an ICMP error quotes. */
struct inner {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u16 l3; /* offset of its IP header */
	__u16 l4; /* offset of its layer-4 header */
	__be16 port;    /* the new port of the end that inner_write rewrites */
	struct addr to; /* the new address of that end */
	__u8 proto;
};

enum parsed {
	PARSED_IP,
	PARSED_ARP,
	PARSED_OTHER,     /* another ethertype, or a frame of a VLAN */
	PARSED_TRUNCATED, /* the packet is shorter than its headers say */
	PARSED_BAD,       /* a header is invalid */
	PARSED_MAPPED,    /* IPv6 with an IPv4-mapped address */
};

#define IP_PLAIN 0x45 /* first byte of an IPv4 header without options: version 4, five words */
#define IP_MF 0x2000
#define IP_OFFSET 0x1fff

/* Clears the fields of the previous packet. Those not cleared here are set by parsing, or by packet_unparsed. */
INLINE void packet_reset(struct packet *pkt, __u32 ifindex, enum hook hook)
{
	__builtin_memset(&pkt->sport, 0, offsetof(struct packet, ifindex) - offsetof(struct packet, sport));
	pkt->hook = hook;
	pkt->ifindex = ifindex;
}

/* Clears the addresses, which were not parsed, and returns parsed. */
INLINE enum parsed packet_unparsed(struct packet *pkt, enum parsed parsed)
{
	__builtin_memset(&pkt->src, 0, sizeof(pkt->src));
	__builtin_memset(&pkt->dst, 0, sizeof(pkt->dst));
	return parsed;
}

INLINE void packet_read4(struct packet *pkt, const struct iphdr *ip)
{
	addr_map4(&pkt->src, ip->saddr);
	addr_map4(&pkt->dst, ip->daddr);
	pkt->family = 4;
	pkt->proto = ip->protocol;
	pkt->ttl = ip->ttl;
}

/* Eight bytes of a packet, whatever type they have. */
typedef __u64 __attribute__((may_alias)) packet_word;

INLINE void packet_read6(struct packet *pkt, const struct ipv6hdr *ip)
{
	/* Two loads for each address: the kernel allows unaligned ones, which the compiler does not know. */
	const packet_word *word = (const packet_word *)&ip->saddr;

	pkt->src.d[0] = word[0];
	pkt->src.d[1] = word[1];
	pkt->dst.d[0] = word[2];
	pkt->dst.d[1] = word[3];
	pkt->family = 6;
	pkt->proto = ip->nexthdr;
	pkt->ttl = ip->hop_limit;
}

/*
 * The lengths must fit in the packet: a receiver's stack checks them too, but hooks read the packet before it does. BIG
 * TCP sets no length (kernel 6.3).
 */
INLINE enum parsed packet_parse4(const struct __sk_buff *skb, struct packet *pkt, const struct iphdr *ip)
{
	__u32 length = bpf_ntohs(ip->tot_len), header = sizeof(*ip);

	if (unlikely(*(const __u8 *)ip != IP_PLAIN)) {
		header = ip->ihl * 4;
		if (ip->version != 4 || header < sizeof(*ip))
			return packet_unparsed(pkt, PARSED_BAD);
	}
	if (unlikely(length < header && !(skb->gso_size && !length)))
		return packet_unparsed(pkt, PARSED_BAD);
	if (unlikely(L3 + length > skb->len))
		return packet_unparsed(pkt, PARSED_TRUNCATED);
	pkt->end = likely(length) ? L3 + length : skb->len;
	packet_read4(pkt, ip);
	return PARSED_IP;
}

INLINE enum parsed packet_parse6(const struct __sk_buff *skb, struct packet *pkt, const struct ipv6hdr *ip)
{
	__u32 length = bpf_ntohs(ip->payload_len);

	if (unlikely(ip->version != 6))
		return packet_unparsed(pkt, PARSED_BAD);
	if (unlikely(L3 + sizeof(*ip) + length > skb->len))
		return packet_unparsed(pkt, PARSED_TRUNCATED);
	/* The length of a BIG TCP jumbogram is in a hop-by-hop option (RFC 2675), and 0 here. */
	pkt->end = unlikely(!length && skb->gso_size) ? skb->len : L3 + sizeof(*ip) + length;
	packet_read6(pkt, ip);
	/* IPv4-mapped addresses stand for IPv4 in the datapath, and are not used on the wire (RFC 4291 2.5.5.2). */
	return unlikely(addr_is4(&pkt->src) || addr_is4(&pkt->dst)) ? PARSED_MAPPED : PARSED_IP;
}

/*
 * The hop-by-hop options with the length of a TCP packet of more than 64 KiB (RFC 2675), from kernel 5.19 to 6.19. The
 * segments that it becomes do not have this header.
 */
struct jumbo_header {
	__u8 nexthdr;
	__u8 words; /* length in units of 8 bytes, without the first */
	__u8 type;
	__u8 length;
	__be32 payload;
};

#define JUMBO_OPTION 0xc2

/* Whether an IPv6 packet begins with that header, in the form that the kernel removes. */
INLINE bool packet_is_jumbo(const struct __sk_buff *skb)
{
	const struct ipv6hdr *ip = (void *)(long)skb->data + L3;
	const struct jumbo_header *h = (void *)(ip + 1);

	return skb->gso_size && (void *)(h + 1) <= (void *)(long)skb->data_end && ip->nexthdr == IPPROTO_HOPOPTS &&
	       h->nexthdr == IPPROTO_TCP && !h->words && h->type == JUMBO_OPTION;
}

/* Returns the packet's data with at least bytes bytes linear, pulling in skb fragments; NULL if it is shorter. */
INLINE void *packet_data(struct __sk_buff *skb, __u32 bytes)
{
	void *data = (void *)(long)skb->data;

	if (likely(data + bytes <= (void *)(long)skb->data_end))
		return data;
	if (skb->len < bytes || bpf_skb_pull_data(skb, bytes))
		return NULL;
	data = (void *)(long)skb->data;
	return data + bytes <= (void *)(long)skb->data_end ? data : NULL;
}

/* Copies bytes of the IP packet. Returns false beyond its end: padding of the frame is not part of it. */
INLINE bool packet_load(struct __sk_buff *skb, const struct packet *pkt, __u32 off, void *to, __u32 size)
{
	return off + size <= pkt->end && !bpf_skb_load_bytes(skb, off, to, size);
}

/*
 * Whether the packet's family is disabled on the node. Such packets never get a forwarding cache entry, so that only
 * the slow path needs this check.
 */
INLINE bool packet_family_off(const struct packet *pkt)
{
	return pkt->family == 4 ? !config.ipv4 : !config.ipv6;
}

/* Parses Ethernet and IP. Returns an enum parsed. Cost: per packet. */
INLINE enum parsed packet_parse(struct __sk_buff *skb, struct packet *pkt, enum hook hook)
{
	void *data;

	packet_reset(pkt, skb->ifindex, hook);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		data = packet_data(skb, L3 + sizeof(struct iphdr));
		return likely(data) ? packet_parse4(skb, pkt, data + L3) : packet_unparsed(pkt, PARSED_TRUNCATED);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		data = packet_data(skb, L3 + sizeof(struct ipv6hdr));
		return likely(data) ? packet_parse6(skb, pkt, data + L3) : packet_unparsed(pkt, PARSED_TRUNCATED);
	}
	return packet_unparsed(pkt, skb->protocol == bpf_htons(ETH_P_ARP) ? PARSED_ARP : PARSED_OTHER);
}

/* ICMP types and codes (RFC 792, RFC 4443), under the kernel's names. Its headers would include the C library's. */
enum {
	ICMP_ECHOREPLY = 0,
	ICMP_DEST_UNREACH = 3,
	ICMP_REDIRECT = 5,
	ICMP_ECHO = 8,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETERPROB = 12,
	ICMP_TIMESTAMP = 13,
	ICMP_ADDRESSREPLY = 18,
	ICMP_HOST_UNREACH = 1,
	ICMP_PORT_UNREACH = 3,
	ICMP_FRAG_NEEDED = 4,
	ICMP_PKT_FILTERED = 13,
	ICMPV6_DEST_UNREACH = 1,
	ICMPV6_PKT_TOOBIG = 2,
	ICMPV6_TIME_EXCEED = 3,
	ICMPV6_ECHO_REQUEST = 128,
	ICMPV6_ECHO_REPLY = 129,
	ICMPV6_ADM_PROHIBITED = 1,
	ICMPV6_ADDR_UNREACH = 3,
	ICMPV6_PORT_UNREACH = 4,
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct icmp_head {
	__u8 type;
	__u8 code;
	__u16 checksum;
	union {
		__be32 word;    /* ICMPv6: the MTU */
		__be16 half[2]; /* ICMPv4: the MTU is the second one (RFC 1191) */
	};
};

INLINE bool proto_has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

#endif
