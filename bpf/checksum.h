/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Internet checksums (RFC 1071, RFC 1624). */
#ifndef MYELIN_CHECKSUM_H
#define MYELIN_CHECKSUM_H

#include "common.h"

/* Folds a sum of 16-bit words and complements it. */
INLINE __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Returns the sum of n words of 32 bits, not folded. n is a constant. */
INLINE __u64 csum_words(const __u32 *word, int n)
{
	__u64 sum = 0;
	int i;

	for (i = 0; i < n; i++)
		sum += word[i];
	return sum;
}

/* Updates a checksum by diff, the sum of the changes as 16-bit words (RFC 1624). */
INLINE __u16 csum_update(__u16 check, __u64 diff)
{
	return csum_fold((__u16)~check + diff);
}

#endif
