/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Trims the packet that a forwarded ICMP error quotes to the size that the datapath's own errors quote. That identifies
 * the flow; the rest could carry any data. Slow path.
 */
#ifndef MYELIN_ICMP_TRIM_H
#define MYELIN_ICMP_TRIM_H

#include "icmp.h"

/* Size of a trimmed error without its IP header, in bytes; a multiple of 4. */
#define ICMP_TRIMMED (sizeof(struct icmp_head) + ICMP_QUOTE)

/* Sums up the trimmed error at offset off, with checksum 0. Returns false if the packet is shorter. Uses c->scratch. */
INLINE bool icmp_sum_trimmed(struct __sk_buff *skb, struct cpu *c, __u32 off, __u64 *sum)
{
	if (bpf_skb_load_bytes(skb, off, c->scratch, ICMP_TRIMMED))
		return false;
	((struct icmp_head *)c->scratch)->checksum = 0;
	*sum = (__u32)bpf_csum_diff(0, 0, (__be32 *)c->scratch, ICMP_TRIMMED, 0);
	return true;
}

/* Sets the length of an IPv4 packet that ends at offset size, and updates the checksum. */
INLINE void icmp_trim_head4(struct iphdr *ip, __u32 size)
{
	__be16 was = ip->tot_len;

	ip->tot_len = bpf_htons(size - L3);
	ip->check = csum_update(ip->check, (__u64)(__u16)~was + ip->tot_len);
}

/* Sets the length of an IPv6 packet that ends at offset size. */
INLINE void icmp_trim_head6(struct ipv6hdr *ip, __u32 size)
{
	ip->payload_len = bpf_htons(size - L3 - sizeof(*ip));
}

/* Sets the length in the header of the packet, which ends at offset size. */
INLINE bool icmp_trim_head(struct __sk_buff *skb, bool ipv4, __u32 size)
{
	void *ip = (void *)(long)skb->data + L3, *end = (void *)(long)skb->data_end;

	if (ip + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) > end)
		return false;
	if (ipv4)
		icmp_trim_head4(ip, size);
	else
		icmp_trim_head6(ip, size);
	return true;
}

/* Trims the quote of the ICMP error in c->pkt to ICMP_QUOTE bytes. Returns 1, or 0 if the kernel refuses. */
APART int icmp_trim(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u32 off, size;
	__u16 check;
	__u64 sum;

	if (!c)
		return 0;
	off = c->pkt.l4;
	size = off + ICMP_TRIMMED;
	if (size >= c->pkt.end)
		return 1;
	if (bpf_skb_change_tail(skb, size, 0) || bpf_skb_pull_data(skb, size))
		return 0;
	if (!(c->pkt.family == 4 ? icmp_trim_head(skb, true, size) : icmp_trim_head(skb, false, size)))
		return 0;
	if (!icmp_sum_trimmed(skb, c, off, &sum))
		return 0;
	if (c->pkt.family == 6) {
		sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)&c->pkt.src, 2 * sizeof(struct addr), 0);
		sum += bpf_htonl(size - off);
		sum += bpf_htonl(IPPROTO_ICMPV6);
	}
	check = csum_fold(sum);
	c->pkt.end = size;
	return !bpf_skb_store_bytes(skb, off + offsetof(struct icmp_head, checksum), &check, sizeof(check), 0);
}

#endif
