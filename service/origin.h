/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The addresses that applications connected to, by socket and backend. */
#ifndef MYELIN_ORIGIN_H
#define MYELIN_ORIGIN_H

#include "row.h"

struct origin_key {
	__u64 cookie; /* of the socket */
	struct addr addr;
	__be16 port;
	__u8 pad[6];
};

struct origin {
	struct addr addr;
	__be16 port;
	__u8 pad[2];
	__u32 backend; /* number of the backend that was chosen; another one may get its address later */
};

/* For getpeername, for replies to unconnected sockets, and to find sockets of deleted backends. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct origin_key);
	__type(value, struct origin);
} origins SEC(".maps");

#endif
