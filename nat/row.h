/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The index of NAT ports. */
#ifndef MYELIN_NAT_ROW_H
#define MYELIN_NAT_ROW_H

#include "../bpf/common.h"

/* A connection as its client knows it: the key of the index of ports. */
struct port_key {
	struct addr client;
	struct addr server;
	__be16 client_port;
	__be16 server_port;
	__u8 proto;
	__u8 pad[3];
};

enum port_index_flag {
	PORT_INDEX_SERVICE = 1, /* of a Service's client; otherwise a pod's that is masqueraded */
	PORT_INDEX_OWN = 2,     /* behind the client's own address: only the port changes */
};

struct port_index {
	struct addr snat; /* the address that the port is one of */
	__u16 port; /* host byte order */
	__u16 flags;
};

/* How many ports the CPU may still look at in the sweeps of the current interval. */
struct port_budget {
	__u32 tick; /* clock tick at which the interval began */
	__u32 left;
};

#endif
