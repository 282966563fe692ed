/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tuples, and the index of NAT ports. */
#ifndef MYELIN_NAT_ROW_H
#define MYELIN_NAT_ROW_H

#include "../bpf/common.h"

/* A flow's tuple, as the packets of one direction have it. */
struct nat_tuple {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
};

/* A row of the index of NAT ports, by a connection's tuple before translation. */
struct port_index {
	struct addr snat; /* the address after translation */
	__u16 port;       /* host byte order */
	__u16 pad;
};

/* How many ports the CPU's sweeps may still examine in the current interval. */
struct port_budget {
	__u32 tick; /* clock tick of the interval's start */
	__u32 left; /* ports */
};

#endif
