/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What IPv4 allows and IPv6 does not: datagrams without a checksum (RFC 7915 4.5) and header options (RFC 7915 4.1).
 * Cost: per packet that has them.
 */
#ifndef MYELIN_CROSS_WHOLE_H
#define MYELIN_CROSS_WHOLE_H

#include "dsr.h"
#include "../nat/nat.h"

#define CROSS_CHUNK 256 /* bytes, in c->scratch; a power of 2 */
#define CROSS_CHUNKS 37 /* full chunks of a datagram of 9,600 bytes; the rest is loaded separately */

enum {
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_LSRR = 131, /* source routes (RFC 791 3.1) */
	OPTION_SSRR = 137,
};

/*
 * Loads n bytes of the packet, 1 to CROSS_CHUNK, at the offset into c->scratch. The bound is computed because old
 * verifiers don't infer it from a comparison.
 */
INLINE bool cross_load(struct __sk_buff *skb, struct cpu *c, __u32 at, __u32 n)
{
	barrier_var(n);
	n = ((n - 1) & (CROSS_CHUNK - 1)) + 1;
	return !bpf_skb_load_bytes(skb, at, c->scratch, n);
}

/*
 * Adds the packet's bytes between two offsets to the checksum. Returns false if the packet is shorter, or the range too
 * long.
 */
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

/*
 * Computes the datagram's checksum, with its new ports and the addresses in c->to. Returns 1, or 0 if that is
 * impossible.
 */
APART int cross_checksum(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__be16 length = 0;
	__u16 check;
	__u32 sum;

	if (!c || skb->gso_size || !packet_load(skb, &c->pkt, c->pkt.l4 + 4, &length, sizeof(length)) ||
	    bpf_ntohs(length) < 8 || c->pkt.l4 + bpf_ntohs(length) > c->pkt.end)
		return 0;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&c->to.src, 2 * sizeof(struct addr), 0);
	if (!cross_sum(skb, c, c->pkt.l4, c->pkt.l4 + bpf_ntohs(length), &sum))
		return 0;
	check = csum_fold((__u64)sum + length + bpf_htons(IPPROTO_UDP));
	if (!check)
		check = 0xffff;
	return !bpf_skb_store_bytes(skb, c->pkt.l4 + 6, &check, sizeof(check), 0);
}

/*
 * Whether the options contain a source route with hops left, or are malformed. The mask keeps the verifier's state the
 * same in all iterations.
 */
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

/* Removes the IPv4 options from the packet. Returns 1, or 0 if an option must not be ignored. */
APART int cross_strip(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u32 bytes;

	if (!c)
		return 0;
	bytes = c->pkt.l4 - L3 - sizeof(struct iphdr);
	if (!bytes || bytes > 40 || !cross_load(skb, c, L3 + sizeof(struct iphdr), bytes) ||
	    cross_routed((__u8 *)c->scratch, bytes))
		return 0;
	/* The IPv4 header's checksum doesn't matter: IPv6 has none. */
	if (!dsr_header4(skb, -(int)bytes, 0) ||
	    bpf_skb_adjust_room(skb, -(int)bytes, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return 0;
	c->pkt.l4 -= bytes;
	c->pkt.end -= bytes;
	return 1;
}

#endif
