/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What sockets asked for that were sent to a backend. */
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
	__u32 backend; /* where it was sent to, by number: another backend may have the address later */
};

/* For getpeername, for answers that name their sender, and to find sockets whose backend has gone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct origin_key);
	__type(value, struct origin);
} origins SEC(".maps");

#endif
