/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services as the datapath knows them: where clients go to, the sets to choose from, and what is behind. */
#ifndef MYELIN_SERVICE_ROW_H
#define MYELIN_SERVICE_ROW_H

#include "../bpf/common.h"

/* Where clients come from. Each has a set of its own, since traffic policies differ. */
enum service_scope {
	SCOPE_EXTERNAL,
	SCOPE_INTERNAL,
	SCOPES,
};

struct frontend_key {
	struct addr addr; /* 0.0.0.0 (mapped) or ::, any address of the node of that family */
	__be16 port;
	__u8 proto;
	__u8 pad[5];
};

enum frontend_flag {
	FRONTEND_EXTERNAL = 1,      /* exists for clients outside of the cluster */
	FRONTEND_INTERNAL = 2,      /* … for its pods and nodes */
	FRONTEND_DROP_EXTERNAL = 4, /* the set is empty here, but not on other nodes */
	FRONTEND_DROP_INTERNAL = 8,
	FRONTEND_THIS_NODE = 16, /* of a wildcard: only the node's own addresses, not those of other nodes */
	FRONTEND_MAGLEV = 32,     /* a set's backend_slots are a Maglev table: the flow's hash says which */
	FRONTEND_LEAST = 64,      /* of two backend_slots at random, the backend with fewer flows */
	FRONTEND_RANGES = 128,    /* for clients of the Service's source ranges only */
	FRONTEND_DSR = 256,       /* the Service's own mode, in the place of the node's */
	FRONTEND_SNAT = 512,
};

enum backend_set_flag {
	SET_TABLE = 1U << 31, /* of a set's number: its rows are in maglev_tables */
};

struct backend_set {
	__u32 id;
	__u32 count; /* backend_slots: a backend has as many as its weight says */
};

struct frontend {
	__u32 service;
	__u32 affinity; /* seconds that a client stays with its backend; 0: not at all */
	struct backend_set set[SCOPES];
	__u32 flags;
	__u32 port; /* which of the Service's ports: the same for all its frontends that lead there */
};

/*
 * By address, port and protocol. A row with port 0 and protocol 0 says that the address has frontends, and for which clients. Grows with the work, as all
 * maps here do.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

#define BACKEND_SLOTS 32 /* in one row of a set: few Services have more backends, and a row stays small to write */

struct backend_slots_key {
	__u32 set;
	__u32 row;
};

struct backend_slots_row {
	__u32 backend[BACKEND_SLOTS];
};

/* What a frontend chooses from. A change of one backend writes one row or two. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct backend_slots_key);
	__type(value, struct backend_slots_row);
} backend_slots SEC(".maps");

#define MAGLEV_SLOTS 496 /* in one row, which is 2 KiB of memory with all that the kernel keeps of it */

struct maglev_row {
	__u32 backend[MAGLEV_SLOTS];
};

/* Sets that are Maglev tables: frontends of a Service that lead to the same backends have one together, which never changes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct backend_slots_key);
	__type(value, struct maglev_row);
} maglev_tables SEC(".maps");

struct backend {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad[5];
};

/* By number, which is no other backend's for as long as agents can tell. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

struct member_key {
	struct addr addr;
	__u32 service;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

/* Which backends a Service has: who else names the Service in an option of direct server return is not believed. The value is nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

struct source_range_key {
	__u32 length; /* bits: those of the service, and of the mapped address */
	__u32 service;
	__be32 addr[4];
};

/* Whom a Service with FRONTEND_RANGES is for. The value is nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key);
	__type(value, __u32);
} source_ranges SEC(".maps");

/* By backend: how many flows it has, as the agent counted last. Only of Services that choose by it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} loads SEC(".maps");

/*
 * A flow that packets are translated for, found from both ends by what the two have in common: the client's address and port, or, where the backend sees
 * the node's in the place of the client's, that port. Flows that share it have places of their own.
 */
struct nat_entry_key {
	struct addr addr; /* the client; zero: the node */
	__be16 port;
	__u8 proto;
	__u8 slot; /* below NAT_ENTRY_SLOTS */
};

enum nat_entry_bound {
	NAT_ENTRY_SLOTS = 8, /* entries that may share address, port and protocol */
};

enum nat_entry_flag {
	NAT_ENTRY_SNAT = 1,    /* the backend sees snat in the place of the client */
	NAT_ENTRY_CLOSING = 2, /* FIN from both or RST seen */
	NAT_ENTRY_REPLIED = 4,
	NAT_ENTRY_GONE = 8,    /* the agent found that the backend is no more */
	NAT_ENTRY_CLIENT_FIN = 32, /* the client was the first to say FIN: the backend keeps nothing of the connection */
	NAT_ENTRY_INDEXED = 64, /* the port is none of the connection's candidates, so that the index has it */
	NAT_ENTRY_DSR = 16,    /* the answers don't come back by this node, or the packets came by another one */
};

struct nat_entry {
	struct addr client;
	struct addr frontend;
	struct addr backend;
	struct addr snat;
	__be16 client_port;
	__be16 frontend_port;
	__be16 backend_port;
	__u8 flags;
	__u8 pad;
	__u32 service;
	__u32 backend_id;
	__u32 seen;   /* clock tick of the last packet */
	__u32 policy_epoch; /* the epoch in which policies were last asked; 0: they were not */
	__u64 created; /* clock tick, all of it */
	__u64 packets[2]; /* [0] from the client, [1] from the backend */
	__u64 bytes[2];
	__u8 tcp_flags[2]; /* all that were seen */
	__u8 pad3[2];
	__u32 timestamp; /* TSval of the client's FIN; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct nat_entry_key);
	__type(value, struct nat_entry);
} nat_entries SEC(".maps");

struct affinity_key {
	struct addr client; /* of a socket: its network namespace's cookie */
	__u32 service;
	__u32 port; /* … of the Service: a client's backend for one is not that for another */
};

struct affinity {
	__u32 backend;
	__u32 seen; /* clock tick of the last new flow */
};

/* Which backend a client had last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinities SEC(".maps");

#endif
