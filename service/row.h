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
	FRONTEND_LOCAL_EXTERNAL = 1024, /* traffic policy Local: external clients reach backends of this node only */
	FRONTEND_LOCAL_INTERNAL = 2048,
	FRONTEND_QUIC = 15 << 16, /* octets of server IDs in QUIC connection IDs, at most 8; 0: none select backends */
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

/*
 * The fields stat and service save most flows a lookup in members: a backend belongs to one Service, as a rule. For
 * others of its Services, members has the index.
 */
struct backend {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 service_high; /* bits 16 to 23 of the number of the Service that stat is for */
	__u16 service_low;
	__u16 stat; /* index into service_stats; 0: none */
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

/* The value of an entry of members. */
enum member_bits {
	MEMBER_EXTERNAL = 1,   /* gets flows of external clients: a DSR option of a packet to it may name the Service */
	MEMBER_STAT_SHIFT = 1, /* the bits from here on are an index into service_stats */
};

/*
 * The backends of each Service: all that external clients may get if DSR is in use, otherwise those with counters of
 * their own.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

/* Counters of a Service's backend: [0] requests, [1] replies. */
struct service_stat {
	__u64 packets[2];
	__u64 bytes[2];
	__u64 flows; /* new flows */
};

/*
 * Per CPU, so that CPUs share no cache line. By the index in members; element 0 counts flows of backends without an
 * index.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct service_stat);
} service_stats SEC(".maps");

struct quic_server_key {
	__u64 id; /* the octets of the server ID as a number, the first one most significant */
	__u32 service;
	__u32 port;   /* of the Service */
	__u32 family; /* of the frontend: 4, 6 */
	__u32 pad;
};

/* The backends of Services with FRONTEND_QUIC by server ID, in any state: flows of established connections may move. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct quic_server_key);
	__type(value, __u32);
} quic_servers SEC(".maps");

#define QUIC_HEAD 15 /* octets of a QUIC packet that are read; all packets are longer (RFC 9001 5.4.2) */

/* The start of a UDP datagram, from the length in its header on, that may be a QUIC packet. */
struct quic_start {
	__be16 length;
	__u16 checksum;
	__u8 head[QUIC_HEAD];
	__u8 valid; /* true: the datagram has them */
};

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
	NAT_ENTRY_PROXY = 64,  /* requests pass through the proxy */
};

/* A translated flow. */
struct nat_entry {
	struct addr backend;
	struct addr snat;
	__be16 backend_port;
	__be16 nat_port;
	__u8 flags;
	__u8 tcp_flags[2]; /* all flags seen, by side */
	__u8 consistent;   /* true: hashing selects the same backend for each packet */
	__u32 service;
	__u32 backend_id;   /* 0: another node selected the backend */
	__u32 seen;         /* clock tick of the last packet; for replies, of the last flush */
	__u32 reserved;
	__u32 policy_epoch; /* epoch of the last policy lookup; 0: none */
	__u32 timestamp;    /* TSval of the client's FIN; 0: none */
	/*
	 * Clock tick of creation, 48 bits. The number had 64 bits before there was an index: entries that an earlier
	 * agent left have the index 0.
	 */
	__u32 created;
	__u16 created_high;
	__u16 stat;         /* index into service_stats */
	__u64 packets[2];   /* [0] from the client, [1] from the backend */
	__u64 bytes[2];
};

/* By the tuple of requests: from the client to the frontend. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct nat_tuple);
	__type(value, struct nat_entry);
} nat_entries SEC(".maps");

/*
 * The keys of flows in the order in which they began, for eviction. A hint: flows may have ended or, where CPUs write
 * to the same place, be missing.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct nat_tuple);
} nat_ring SEC(".maps");

/* What replies need, so that each costs one lookup. Counters are flushed to the NAT entry once a second. */
struct nat_reply {
	struct nat_tuple request; /* the key of the NAT entry */
	__u32 flushed;            /* clock tick of the last flush; 0: none */
	__u32 packets;
	__u64 bytes;
	__u8 tcp_flags; /* all flags seen */
	__u8 pad;
	__u16 stat; /* that of the NAT entry, index into service_stats */
	__u8 pad2[4];
};

/*
 * By the tuple of replies: from the backend to the client or, with SNAT, to the NAT port. Inserting an entry claims the
 * port: no two flows that the backend could not tell apart have one. Flows with DSR whose backend this node selected
 * have none.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct nat_tuple);
	__type(value, struct nat_reply);
} nat_replies SEC(".maps");

/*
 * SO_MARK of the sockets of health checks, so that nothing is looked up for other packets of the host. The mark alone
 * has no effect: the flow must be in probes.
 */
enum probe_mark {
	PROBE_MARK = 0x6d000000,
	PROBE_MARK_MASK = 0xff000000,
};

/* How a health check's packets travel. */
enum probe_way {
	PROBE_UNSEEN,      /* to_wire has seen no packet */
	PROBE_NO_FRONTEND, /* the address is no frontend, or not yet: directly to the backend */
	PROBE_PLAIN,       /* clients are SNATed, or the backend is reached without a wire: directly to the backend */
	PROBE_DSR,         /* as clients' packets travel by DSR */
};

/* One direction of the connection of a health check. */
struct probe {
	struct addr addr;     /* of requests: the frontend; of replies: the backend */
	__be16 port;          /* of addr */
	__be16 frontend_port; /* of requests: the frontend's, which differs from port if the check has its own */
	__u8 proto;           /* of requests: the Service's */
	__u8 reply;           /* true: a reply */
	__u8 way;             /* of requests: enum probe_way, of the last packet */
	__u8 pad;
	__u32 packets; /* that were translated */
	__u32 pad2;
};

/*
 * By tuple: of requests, from the node to the backend, as the socket sends them; of replies, from the frontend to the
 * node. Rows exist while their connection does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct nat_tuple);
	__type(value, struct probe);
} probes SEC(".maps");

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
