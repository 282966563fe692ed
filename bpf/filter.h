/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Bit filters of addresses: a lookup is saved for nearly all addresses that a map does not have. */
#ifndef MYELIN_FILTER_H
#define MYELIN_FILTER_H

#include "common.h"

#define ADDRESS_FILTER_BITS 16 /* of the index of a bit */

/*
 * Has a bit set for the hash of each address in a map. The agent sets a bit before it writes the map. Bits of removed
 * addresses stay set, and cost a lookup. Each filter has a section of its own, which is a map that can be pinned and is
 * read without a lookup.
 */
struct address_filter {
	__u64 word[1 << (ADDRESS_FILTER_BITS - 6)];
};

/* Whether the map may have the address. Cost: a load. */
INLINE bool address_filter_has(const struct address_filter *filter, const struct addr *a)
{
	__u32 bit = addr_hash(a) >> (64 - ADDRESS_FILTER_BITS);

	return filter->word[bit >> 6] & 1ULL << (bit & 63);
}

#endif
