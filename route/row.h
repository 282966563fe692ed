/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forwarding cache entries, and the key of maps of prefixes. */
#ifndef MYELIN_PATH_ROW_H
#define MYELIN_PATH_ROW_H

#include "../bpf/common.h"

struct prefix_key {
	__u32 length;   /* bits of the mapped address */
	__be32 addr[4]; /* 32-bit words, so that there is no padding after the length */
};

enum path_action {
	PATH_NONE,
	PATH_POD,     /* into the pod behind ifindex */
	PATH_WIRE,    /* out of ifindex with the cached Ethernet header */
	PATH_TUNNEL,  /* to the node at via */
	PATH_STACK,   /* to the host's stack */
	PATH_RESOLVE, /* out of ifindex, the kernel resolves the neighbour via; never cached */
	PATH_PROXY,   /* to the proxy by ifindex */
	PATH_ENCRYPT, /* out of the device ifindex, which encrypts, to another node */
};

/* What packets on the path need besides forwarding. Without flags they are forwarded unchanged. */
enum path_flag {
	PATH_MASQUERADE = 1, /* the source becomes the wire's address */
	PATH_FRONTEND = 2,   /* the destination is a Service's address */
	PATH_ANSWERS = 4,    /* packets may be replies of a Service's backend */
	PATH_NODE_PORTS = 8, /* the destination is a node's address, some ports of which are Services' node ports */
	PATH_TRACKED = 16,   /* all flows have conntrack entries, translated or not */
	PATH_POLICY = 32,    /* policies are enforced on flows; only together with PATH_TRACKED */
	PATH_L7 = 64,        /* flows may pass through the proxy; only together with PATH_POLICY */
};

#define PATH_SERVICES (PATH_FRONTEND | PATH_ANSWERS | PATH_NODE_PORTS)

/* A forwarding decision. */
struct path {
	__u32 ifindex;    /* the output device */
	__u32 epoch;      /* epoch_sum of both ends when it was decided */
	__u32 expires;    /* clock tick; bounds the age of what the neighbour table said */
	__u32 in_ifindex; /* the input device */
	__u16 src_slot;
	__u16 dst_slot;
	__u16 mtu;        /* layer-3 bytes; 0: not checked */
	__u8 action;      /* enum path_action */
	__u8 flags;       /* enum path_flag */
	struct mac dmac;  /* copied together with smac as three words; its offset is a multiple of 4 */
	struct mac smac;
	struct mac in_mac __attribute__((aligned(4))); /* the source MAC that packets must have */
	__u8 limits;      /* enum path_limit */
	__u8 fast;        /* enum path_action: what the fast path does with packets; PATH_NONE: nothing */
	__u8 pad[2];
	__u16 limited;    /* LIMIT_SOURCE: the slot of the endpoint with the limit */
	__u64 generation; /* epoch_generation at the last validation */
	struct addr via;  /* PATH_TUNNEL: the node; PATH_RESOLVE: the next hop */
};

/* A forwarding cache entry: a decision, and the addresses of the packets that it applies to. */
struct cached_path {
	struct addr dst;
	struct addr src;  /* not compared if entries are found by destination only */
	struct addr snat; /* the wire's address that pods are masqueraded to */
	struct path path;
};

#endif
