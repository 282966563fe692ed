/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What IPv4 may have and IPv6 may not: datagrams without a checksum (RFC 7915 4.5), and options of the header (4.1). Per packet that has them. */
#ifndef MYELIN_CROSS_WHOLE_H
#define MYELIN_CROSS_WHOLE_H

#include "dsr.h"
#include "../nat/nat.h"

#define CROSS_CHUNK 256 /* bytes, of the CPU's scratch; a power of 2 */
#define CROSS_CHUNKS 37 /* of a datagram of 9,600 bytes, and what is left */

enum {
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_LSRR = 131, /* source routes (RFC 791 3.1) */
	OPTION_SSRR = 137,
};

/* The first bytes of scratch, 1 to CROSS_CHUNK, from a place of the packet on. Old verifiers see a bound only if it is computed. */
INLINE bool cross_load(struct __sk_buff *skb, struct cpu *c, __u32 at, __u32 n)
{
	barrier_var(n);
	n = ((n - 1) & (CROSS_CHUNK - 1)) + 1;
	return !bpf_skb_load_bytes(skb, at, c->scratch, n);
}

/* The sum of the bytes of the packet from one place to another, added to sum. False if they are not there, or too many. */
INLINE bool cross_sum(struct __sk_buff *skb, struct cpu *c, __u32 at, __u32 end, __u32 *sum)
{
	__u32 i;

	for (i = 0; i < CROSS_CHUNKS && at + CROSS_CHUNK <= end; i++) {
		if (bpf_skb_load_bytes(skb, at, c->scratch, CROSS_CHUNK))
			return false;
		*sum = bpf_csum_diff(NULL, 0, (__be32 *)c->scratch, CROSS_CHUNK, *sum);
		at += CROSS_CHUNK;
	}
	if (at >= end)
		return at == end;
	__builtin_memset(c->scratch, 0, CROSS_CHUNK);
	if (end - at > CROSS_CHUNK || !cross_load(skb, c, at, end - at))
		return false;
	*sum = bpf_csum_diff(NULL, 0, (__be32 *)c->scratch, CROSS_CHUNK, *sum);
	return true;
}

/* Gives the CPU's datagram, which has its new ports, the checksum that it needs between the ends of the CPU's rewrite. Returns 1, or 0 if it can't have one. */
APART int cross_checksum(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__be16 length = 0;
	__u16 check;
	__u32 sum;

	if (!c || skb->gso_size || !packet_load(skb, &c->pkt, c->pkt.l4 + 4, &length, sizeof(length)) || bpf_ntohs(length) < 8 ||
	    c->pkt.l4 + bpf_ntohs(length) > c->pkt.end)
		return 0;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&c->to.src, 2 * sizeof(struct addr), 0);
	if (!cross_sum(skb, c, c->pkt.l4, c->pkt.l4 + bpf_ntohs(length), &sum))
		return 0;
	check = csum_fold((__u64)sum + length + bpf_htons(IPPROTO_UDP));
	if (!check)
		check = 0xffff;
	return !bpf_skb_store_bytes(skb, c->pkt.l4 + 6, &check, sizeof(check), 0);
}

/* Whether the options say that the packet must still go by way of others, or make no sense. The mask makes all passes alike to the verifier. */
INLINE bool cross_routed(const __u8 *options, __u32 bytes)
{
	__u32 i, at = 0, length;
	const __u8 *o;

	for (i = 0; i < 40 && at < bytes; i++) {
		o = options + at;
		length = *o == OPTION_NOP ? 1 : o[1];
		if (*o == OPTION_END)
			return false;
		if (*o != OPTION_NOP && (length < 2 || ((*o == OPTION_LSRR || *o == OPTION_SSRR) && o[2] <= length)))
			return true;
		if (length >= bytes - at)
			return false;
		at += length;
		barrier_var(at);
		at &= CROSS_CHUNK - 1;
	}
	return false;
}

/* Takes the options out of the CPU's packet. Returns 1, or 0 if one must not be ignored. */
APART int cross_strip(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u32 bytes;

	if (!c)
		return 0;
	bytes = c->pkt.l4 - L3 - sizeof(struct iphdr);
	if (!bytes || bytes > 40 || !cross_load(skb, c, L3 + sizeof(struct iphdr), bytes) || cross_routed((__u8 *)c->scratch, bytes))
		return 0;
	/* The header's checksum is of no interest: there is none in IPv6. */
	if (!dsr_header4(skb, -(int)bytes, 0) || bpf_skb_adjust_room(skb, -(int)bytes, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return 0;
	c->pkt.l4 -= bytes;
	c->pkt.end -= bytes;
	return 1;
}

#endif
