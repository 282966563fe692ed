/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rewriting SCTP ports. The checksum, a CRC32c, covers the whole packet (RFC 9260 6.8), but the effect of a changed
 * port on it depends only on the packet's length.
 */
#ifndef MYELIN_SCTP_H
#define MYELIN_SCTP_H

#include "../bpf/cpu.h"

#define SCTP_CHECK 8       /* offset of the checksum */
#define CRC32C 0x82f63b78u /* the polynomial; in all polynomials here, the lowest bit is the highest power */

/* Returns the product of two polynomials over GF(2), modulo CRC32C. */
APART __u32 crc_product(__u32 a, __u32 b)
{
	__u32 product = 0;
	int i;

	for (i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (CRC32C & -(b & 1));
	}
	return product;
}

/*
 * Returns the change of a packet's checksum if its first word changes by word: word * x^(8 * length), since a CRC is
 * linear and continues over the bytes that follow.
 */
INLINE __u32 sctp_change(__u32 word, __u32 length)
{
	/* x^(8 * 2^i) */
	const __u32 powers[] = {
		0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
		0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
	};
	int i;

#pragma unroll
	for (i = 0; i < 16; i++)
		if (length >> i & 1)
			word = crc_product(powers[i], word);
	return word;
}

/*
 * Replaces a port in the header and updates the checksum; at: the port's offset, 0 for the source or 2 for the
 * destination. A checksum of 0 is left alone: the device computes it later, or nothing does. Returns 0 or 1 for an
 * error. Cost: per packet of a translated SCTP flow, a thousand instructions.
 */
APART int sctp_write_port(struct __sk_buff *skb, __u32 l4, __u32 at, __u32 from, __u32 to)
{
	__u32 four = skb->protocol == bpf_htons(ETH_P_IP), check;
	__be16 length, port = to;

	if (bpf_skb_load_bytes(skb, l4 + SCTP_CHECK, &check, sizeof(check)))
		return 1;
	if (check) {
		if (bpf_skb_load_bytes(skb, L3 + (four ? offsetof(struct iphdr, tot_len)
						       : offsetof(struct ipv6hdr, payload_len)),
				       &length, sizeof(length)))
			return 1;
		check ^= sctp_change((from ^ to) << 8 * at,
				     bpf_ntohs(length) + (four ? 0 : sizeof(struct ipv6hdr)) + L3 - l4);
		if (bpf_skb_store_bytes(skb, l4 + SCTP_CHECK, &check, sizeof(check), 0))
			return 1;
	}
	return bpf_skb_store_bytes(skb, l4 + at, &port, sizeof(port), 0) ? 1 : 0;
}

#endif
