/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The row of a path, and the key of what is found by prefix. */
#ifndef MYELIN_PATH_ROW_H
#define MYELIN_PATH_ROW_H

#include "../bpf/common.h"

struct prefix_key {
	__u32 length; /* bits, of the mapped address */
	__be32 addr[4]; /* right behind the length */
};

enum path_action {
	PATH_NONE,
	PATH_POD,     /* into the pod behind ifindex */
	PATH_WIRE,    /* out of ifindex with the kept Ethernet header */
	PATH_TUNNEL,  /* to the node at via */
	PATH_STACK,   /* the host's own business */
	PATH_RESOLVE, /* out of ifindex, the kernel finding the neighbour via; never kept */
};

/* What is to be done with packets on the path. None: they are forwarded as they are. */
enum path_flag {
	PATH_MASQUERADE = 1, /* the source becomes the wire's address */
	PATH_FRONTEND = 2,   /* the destination is a Service's */
	PATH_ANSWERS = 4,    /* some may be answers of a Service's backend */
	PATH_NODE_PORTS = 8, /* the destination is a node's, of whose ports some are Services' */
	PATH_TRACKED = 16,   /* flows have rows, translated or not */
	PATH_POLICY = 32,    /* policies say which flows may; goes with PATH_TRACKED */
};

#define PATH_SERVICES (PATH_FRONTEND | PATH_ANSWERS | PATH_NODE_PORTS)

struct path {
	__u32 ifindex;
	__u32 epoch;
	__u32 expires;    /* clock tick; with it goes what the neighbour table said */
	__u32 in_ifindex; /* the link that packets come in by */
	__u16 src_slot;
	__u16 dst_slot;
	__u16 mtu; /* bytes of layer 3; 0: not checked */
	__u8 action;
	__u8 flags; /* enum path_flag */
	struct mac dmac; /* with smac copied as one, from an offset that 4 divides */
	struct mac smac;
	struct mac in_mac __attribute__((aligned(4))); /* the source MAC packets must have */
	__u16 pad[3];
	__u64 generation; /* of all epochs, when this one was last looked at */
	struct addr via;  /* PATH_TUNNEL: the node; PATH_RESOLVE: the next hop */
};

/* A path, and for which packets it was decided. */
struct cached_path {
	struct addr dst;
	struct addr src;  /* zero: whoever's */
	struct addr snat; /* the wire's address that pods are masqueraded to */
	struct path path;
};

#endif
