/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The rows of policies. An endpoint has a set for each direction and family. A set puts peers, by their identity, in classes; a class is a list of ports,
 * each with a verdict. Sets and classes share their numbers: the class with the set's own number is for peers that have none. The agent has weighed
 * all rules against each other: the longest row that matches is the answer.
 */
#ifndef MYELIN_POLICY_ROW_H
#define MYELIN_POLICY_ROW_H

#include "../bpf/common.h"

enum policy_direction {
	POLICY_INGRESS,
	POLICY_EGRESS,
};

/* What an endpoint's policies are. */
struct endpoint_policy {
	__u32 set[2][2];     /* by direction, then family (IPv4, IPv6); 0: anything goes */
	__u32 lengths[2][2]; /* of the class that has the set's number */
	__u8 audit;          /* 1: what is denied is only reported */
	__u8 pad[3];
};

struct peer_class_key {
	__u32 set;
	__u32 identity;
};

/* Bit n of lengths: the class has rows of n bits of the port (0 to 16). */
#define POLICY_PROTO_ANY 17 /* … and this bit: it has one for all protocols. Each class has. */

/* Bits of lengths: what protocols the class has no rows of, so that none is looked for. */
enum policy_absent {
	POLICY_NO_TCP = 1 << 18,
	POLICY_NO_UDP = 1 << 19,
	POLICY_NO_OTHER = 1 << 20,
};

/* … and one that no map has: what the endpoint's class denies is only reported. */
#define POLICY_AUDIT (1u << 31)

struct peer_class {
	__u32 class;
	__u32 lengths;
};

struct verdict_key {
	__u32 class;
	__u16 port; /* host byte order, or an ICMP type; only the first bits, the others 0 */
	__u8 proto; /* 0: all */
	__u8 bits;  /* 0 to 16 */
};

enum policy_action {
	POLICY_DENY,
	POLICY_ALLOW,
	POLICY_NO_RULE, /* denied, for no rule allowed it */
};

struct verdict {
	__u32 rule;  /* 0: none */
	__u16 proxy; /* port of the proxy to go through; 0: none */
	__u8 action; /* enum policy_action */
	__u8 pad;
	__u64 hits; /* flows that it decided */
	__u64 last; /* clock tick of the last one, all of it; 0: none */
};

#endif
