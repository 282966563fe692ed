/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The index of NAT ports. */
#ifndef MYELIN_NAT_ROW_H
#define MYELIN_NAT_ROW_H

#include "../bpf/common.h"

/* The key of the index of NAT ports: a connection's tuple before translation. */
struct port_key {
	struct addr client;
	struct addr server;
	__be16 client_port;
	__be16 server_port;
	__u8 proto;
	__u8 pad[3];
};

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
