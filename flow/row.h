/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The row of a flow. */
#ifndef MYELIN_FLOW_ROW_H
#define MYELIN_FLOW_ROW_H

#include "../route/row.h"

/* The two ends, the smaller one first. Of a translated flow: as the wire sees it. */
struct flow_key {
	struct addr addr[2];
	__be16 port[2];
	__u8 proto;
	__u8 pad[3];
};

enum flow_flag {
	FLOW_NAT = 1,     /* the pod is behind one of the node's own addresses */
	FLOW_CLOSING = 2, /* FIN or RST seen */
	FLOW_REPLIED = 4, /* packets seen both ways */
	FLOW_DENIED = 8,  /* a policy has come that forbids it */
	FLOW_POD_FIN = 16, /* FLOW_NAT: the pod was the first to say FIN: its peer keeps nothing of the connection */
	FLOW_INDEXED = 32, /* FLOW_NAT: the port is none of the connection's candidates, so that the index has it */
};

/* Seconds without a packet after which a flow's row, and its port, may be used again. */
enum flow_seconds {
	FLOW_TCP_SECONDS = 8000, /* beyond the kernel's tcp_keepalive_time of 7,200 */
	FLOW_SYN_SECONDS = 60,
	FLOW_CLOSING_SECONDS = 10,
	FLOW_TIME_WAIT_SECONDS = 60, /* behind a node's address, where the server may be in TIME-WAIT: the kernel's TCP_TIMEWAIT_LEN */
	FLOW_OTHER_SECONDS = 60,
};

/* One direction of a flow: [0] from the key's first end to the second, [1] back. */
struct flow_side {
	__u64 packets;
	__u64 bytes;
	__u8 tcp_flags; /* all that were seen */
	__u8 pad[3];
	__u32 timestamp; /* TSval of the FIN; 0: none */
};

struct flow {
	struct flow_side side[2];
	__u64 created; /* clock tick, all of it */
	__u32 seen;       /* clock tick of the last packet that the row was told of */
	__u32 policy_epoch;     /* the epoch in which policies were last asked; 0: they were not */
	__u32 rule[2];    /* what they said, by direction (POLICY_INGRESS …); 0: nothing */
	__u16 slot;       /* the endpoint at which the flow began */
	__u8 flags;
	__u8 origin; /* the side that sent the first packet */
	__be16 pod_port;
	__u8 pod_side;   /* FLOW_NAT: the one that stands for the pod */
	__u8 pad;
	struct addr pod; /* FLOW_NAT: who is behind the node's address */
	struct path way; /* FLOW_NAT: to the pod */
};

#endif
