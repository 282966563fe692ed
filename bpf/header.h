/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Filling in IP headers. */
#ifndef MYELIN_HEADER_H
#define MYELIN_HEADER_H

#include "checksum.h"

/* Fills in an IPv4 header without options, with DF set. length is that of the packet. */
INLINE void header4(struct iphdr *ip, const struct addr *src, const struct addr *dst, __u16 length, __u8 proto,
		    __u8 ttl, __u8 tos)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = tos;
	ip->tot_len = bpf_htons(length);
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = ttl;
	ip->protocol = proto;
	ip->saddr = src->w[3];
	ip->daddr = dst->w[3];
	ip->check = csum_fold(csum_words((const __u32 *)ip, sizeof(*ip) / 4));
}

/* Fills in an IPv6 header, with traffic class and flow label 0. */
INLINE void header6(struct ipv6hdr *ip, const struct addr *src, const struct addr *dst, __u16 payload, __u8 proto,
		    __u8 ttl)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(payload);
	ip->nexthdr = proto;
	ip->hop_limit = ttl;
	__builtin_memcpy(&ip->saddr, src, sizeof(*src));
	__builtin_memcpy(&ip->daddr, dst, sizeof(*dst));
}

#endif
