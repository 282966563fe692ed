/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Entries of the policy maps. An endpoint has a set for each direction and family. A set maps the identities of peers
 * to classes; a class is a list of ports, each with a verdict. Sets and classes are numbered together: the class with
 * the set's own number applies to peers without a class. The agent has resolved all precedence between rules: the
 * longest entry that matches has the verdict.
 */
#ifndef MYELIN_POLICY_ROW_H
#define MYELIN_POLICY_ROW_H

#include "../bpf/common.h"

enum policy_direction {
	POLICY_INGRESS,
	POLICY_EGRESS,
};

/* The policies of an endpoint. */
struct endpoint_policy {
	__u32 set[2][2];     /* by direction, then family (IPv4, IPv6); 0: everything is allowed */
	__u32 lengths[2][2]; /* of the class that has the set's number */
	__u8 audit;          /* 1: audit mode, denials are only reported */
	__u8 l7;             /* enum policy_l7 */
	__u8 pad[2];
};

/* What an endpoint's policies have beyond addresses and ports. */
enum policy_l7 {
	POLICY_L7 = 1,    /* flows may pass through the proxy */
	POLICY_NAMES = 2, /* rules select addresses by name, or allow queries by name: DNS passes through the proxy */
};

struct peer_class_key {
	__u32 set;
	__u32 identity;
};

/* Bit n of lengths is set if the class has entries that match n bits of the port (0 to 16). */
#define POLICY_PROTO_ANY 17 /* the bit of the entry for all protocols, which each class has */

/* Bits of lengths: protocols that the class has no entries of, and that need no lookup. */
enum policy_absent {
	POLICY_NO_TCP = 1 << 18,
	POLICY_NO_UDP = 1 << 19,
	POLICY_NO_OTHER = 1 << 20,
};

/* The bit of lengths that marks the endpoint's audit mode in a lookup context. No map has it. */
#define POLICY_AUDIT (1u << 31)

/* The bit of lengths that marks POLICY_NAMES in a lookup context. No map has it. */
#define POLICY_BY_NAME (1u << 30)

struct peer_class {
	__u32 class;
	__u32 lengths; /* bits as above */
};

struct verdict_key {
	__u32 class;
	__u16 port; /* a port in host byte order, or an ICMP type; bits that are not matched are 0 */
	__u8 proto; /* 0: all */
	__u8 bits;  /* number of leading port bits that are matched, 0 to 16 */
};

enum policy_action {
	POLICY_DENY,
	POLICY_ALLOW,
	POLICY_NO_RULE, /* denied, because no rule allows it */
};

struct verdict {
	__u32 rule;  /* number of the deciding rule, or of several that the proxy enforces together; 0: none */
	__u16 proxy; /* 1: allowed if it passes through the proxy, which enforces the L7 rules of the rule */
	__u8 action; /* enum policy_action */
	__u8 pad;
	__u64 hits;  /* number of policy lookups that it decided */
	__u64 last;  /* clock tick of the last one, 64 bits; 0: none */
};

/* An address that an endpoint got for a name. */
struct name_key {
	struct addr addr;
	__u32 slot; /* of the endpoint */
};

#define NAME_SELECTORS 8

/* The selectors of names that match the address's names, from the first element on; 0 ends the list. */
struct name {
	__u64 expires; /* nanoseconds of CLOCK_MONOTONIC */
	__u32 selector[NAME_SELECTORS];
};

#endif
