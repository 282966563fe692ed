/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services as the datapath knows them: frontends, backend slots, backends, and the NAT entries of flows. */
#ifndef MYELIN_SERVICE_ROW_H
#define MYELIN_SERVICE_ROW_H

#include "../bpf/common.h"
#include "../nat/row.h"

/* Where clients are. Each scope has its own set of backends, since traffic policies differ. */
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
	FRONTEND_EXTERNAL = 1,      /* exists for clients outside the cluster */
	FRONTEND_INTERNAL = 2,      /* exists for the cluster's pods and nodes */
	FRONTEND_DROP_EXTERNAL = 4, /* this node has no backend for external clients, but others have */
	FRONTEND_DROP_INTERNAL = 8,
	FRONTEND_THIS_NODE = 16, /* of a wildcard: only this node's addresses, not those of other nodes */
	FRONTEND_MAGLEV = 32,     /* the set is a Maglev table, indexed by the flow's hash */
	FRONTEND_LEAST = 64,      /* of two random backend slots, the backend with fewer flows */
	FRONTEND_RANGES = 128,    /* only clients in the Service's source ranges are allowed */
	FRONTEND_DSR = 256,       /* mode of the Service, overrides that of the node */
	FRONTEND_SNAT = 512,
};

enum backend_set_flag {
	SET_TABLE = 1U << 31, /* in the set's number: its rows are in maglev_tables */
};

struct backend_set {
	__u32 id;
	__u32 count; /* number of backend slots: a backend has as many as its weight says */
};

struct frontend {
	__u32 service;
	__u32 affinity; /* seconds for which a client keeps its backend; 0: no affinity */
	struct backend_set set[SCOPES];
	__u32 flags;
	__u32 port; /* number of the Service's port, the same in all of its frontends */
};

/*
 * By address, port and protocol. An entry with port 0 and protocol 0 says that the address has frontends, and for which
 * clients. Memory grows with the number of entries, as in all maps here except LRU maps.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

#define BACKEND_SLOTS 32 /* in one row of a set: enough for most Services, and small enough to write */

struct backend_slots_key {
	__u32 set;
	__u32 row;
};

struct backend_slots_row {
	__u32 backend[BACKEND_SLOTS];
};

/* The sets that frontends choose backends from. A change of one backend writes one or two rows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct backend_slots_key);
	__type(value, struct backend_slots_row);
} backend_slots SEC(".maps");

#define MAGLEV_SLOTS 496 /* in one row, which takes 2 KiB of memory with the kernel's overhead */

struct maglev_row {
	__u32 backend[MAGLEV_SLOTS];
};

/* Sets that are Maglev tables. Frontends of a Service with the same backends share one, which never changes. */
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

/* By number; numbers are not reused while agents can remember them. */
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

/* The backends of each Service: a DSR option is accepted only for one of them. The value has no meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

struct source_range_key {
	__u32 length; /* bits of service and of the mapped address */
	__u32 service;
	__be32 addr[4];
};

/* Clients that may use Services with FRONTEND_RANGES. The value has no meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key);
	__type(value, __u32);
} source_ranges SEC(".maps");

/* Number of flows by backend, as the agent counted last. Only for Services with FRONTEND_LEAST. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} loads SEC(".maps");

enum nat_entry_flag {
	NAT_ENTRY_SNAT = 1,    /* the backend sees snat and nat_port instead of the client */
	NAT_ENTRY_CLOSING = 2, /* FIN from both sides or RST seen */
	NAT_ENTRY_REPLIED = 4,
	NAT_ENTRY_GONE = 8,    /* ended: the backend is gone, or another flow has the NAT port */
	NAT_ENTRY_DSR = 16,    /* replies don't pass this node, or another node forwarded the requests */
	NAT_ENTRY_CLIENT_FIN = 32, /* the client sent the first FIN: the backend has no TIME-WAIT */
};

/* A translated flow. */
struct nat_entry {
	struct addr backend;
	struct addr snat;
	__be16 backend_port;
	__be16 nat_port;
	__u8 flags;
	__u8 tcp_flags[2]; /* all flags seen, by side */
	__u8 pad;
	__u32 service;
	__u32 backend_id;   /* 0: another node selected the backend */
	__u32 seen;         /* clock tick of the last packet; for replies, of the last flush */
	__u32 refreshed;    /* clock tick when a request last looked the reply's entry up */
	__u32 policy_epoch; /* epoch of the last policy lookup; 0: none */
	__u32 timestamp;    /* TSval of the client's FIN; 0: none */
	__u64 created;      /* clock tick, 64 bits */
	__u64 packets[2];   /* [0] from the client, [1] from the backend */
	__u64 bytes[2];
};

/* By the tuple of requests: from the client to the frontend. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct nat_tuple);
	__type(value, struct nat_entry);
} nat_entries SEC(".maps");

/* What replies need, so that each costs one lookup. Counters are flushed to the NAT entry once a second. */
struct nat_reply {
	struct nat_tuple request; /* the key of the NAT entry */
	__u32 flushed;            /* clock tick of the last flush; 0: none */
	__u32 packets;
	__u64 bytes;
	__u8 tcp_flags; /* all flags seen */
	__u8 pad[7];
};

/*
 * By the tuple of replies: from the backend to the client or, with SNAT, to the NAT port. Inserting an entry claims the
 * port: no two flows that the backend could not tell apart have one. Flows with DSR whose backend this node selected
 * have none.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct nat_tuple);
	__type(value, struct nat_reply);
} nat_replies SEC(".maps");

struct affinity_key {
	struct addr client; /* for sockets, the cookie of their network namespace */
	__u32 service;
	__u32 port; /* of the Service: affinity is per port */
};

struct affinity {
	__u32 backend;
	__u32 seen; /* clock tick of the last new flow */
};

/* The last backend of each client. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinities SEC(".maps");

#endif
