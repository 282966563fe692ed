/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The conntrack entry. */
#ifndef MYELIN_FLOW_ROW_H
#define MYELIN_FLOW_ROW_H

#include "../route/row.h"

/* Both ends of a flow, the smaller one first. A masqueraded flow has the tuple that is on the wire. */
struct flow_key {
	struct addr addr[2];
	__be16 port[2];
	__u8 proto;
	__u8 pad[3];
};

enum flow_flag {
	FLOW_NAT = 1,      /* masqueraded: the pod uses one of the node's own addresses */
	FLOW_CLOSING = 2,  /* one side has sent RST, or both have sent FIN */
	FLOW_REPLIED = 4,  /* packets were seen in both directions */
	FLOW_DENIED = 8,   /* a policy that was added since denies the flow */
	FLOW_POD_FIN = 16, /* FLOW_NAT: the pod sent the first FIN, so that the peer has no TIME-WAIT */
	FLOW_INDEXED = 32, /* FLOW_NAT: the port is not the first candidate, and therefore in the index */
	/*
	 * The flow passes through the proxy, for as long as it exists. FLOW_NAT: it is the proxy's connection to the
	 * world, whose packets are for the proxy.
	 */
	FLOW_PROXY = 64,
};

/* Seconds without a packet after which a conntrack entry expires, and its NAT port may be used again. */
enum flow_seconds {
	FLOW_TCP_SECONDS = 8000,     /* more than the kernel's tcp_keepalive_time of 7,200 */
	FLOW_SYN_SECONDS = 60,
	FLOW_CLOSING_SECONDS = 10,
	FLOW_TIME_WAIT_SECONDS = 60, /* masqueraded, the server may be in TIME-WAIT: the kernel's TCP_TIMEWAIT_LEN */
	FLOW_OTHER_SECONDS = 60,
};

/* One direction of a flow: [0] from the key's first end to the second, [1] back. */
struct flow_side {
	__u64 packets;
	__u64 bytes;
	__u8 tcp_flags; /* all that were seen */
	__u8 pad[3];
	__u32 timestamp; /* TSval of the FIN (RFC 7323); 0: none */
};

struct flow {
	struct flow_side side[2];
	__u64 created;      /* clock tick, 64 bits */
	__u32 seen;         /* clock tick of the last packet or flush */
	__u32 policy_epoch; /* the epoch of the last policy lookup; 0: there was none */
	__u32 rule[2];      /* the rules that decided it, by enum policy_direction; 0: none */
	__u16 slot;         /* the endpoint that the entry was created for */
	__u8 flags;         /* enum flow_flag */
	__u8 origin;        /* the side that opened the flow */
	__be16 pod_port;    /* FLOW_NAT: the pod's own port */
	__u8 pod_side;      /* FLOW_NAT: the side of the node's address, which stands for the pod */
	__u8 pad;
	struct addr pod;    /* FLOW_NAT: the pod's own address */
	struct path way;    /* FLOW_NAT: the forwarding decision for packets to the pod */
};

#endif
