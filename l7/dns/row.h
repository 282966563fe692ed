/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* DNS queries that the proxy has allowed, and what their answers may say. */
#ifndef MYELIN_DNS_ROW_H
#define MYELIN_DNS_ROW_H

#include "../../bpf/common.h"

enum dns_bound {
	DNS_QUESTION = 96, /* bytes of a question: name, type and class */
	DNS_LABELS = 16,   /* of its name */
	DNS_ADDRESSES = 8, /* of an answer */
	DNS_PENDING = 8,   /* queries of an entry without an answer; a power of 2 */
	DNS_PENDING_SHIFT = 12,  /* their times count in units of 2^12 ns, modulo 2^32: 4.9 hours */
	DNS_PENDING_SLACK = 256, /* and may be ahead of another CPU's clock by as many units: a millisecond */
};

/* A question of a pod to a server, by UDP. */
struct dns_key {
	struct addr server;
	__be16 port;                 /* of the server */
	__u16 length;                /* of the question */
	__u32 slot;                  /* of the pod */
	__u8 question[DNS_QUESTION]; /* as in the message, in lower case; followed by zeros */
};

/* The proxy writes entries; the datapath writes what it has seen of answers, and pending queries. */
struct dns_entry {
	__u64 expires;   /* nanoseconds of CLOCK_MONOTONIC: until then, policies know the addresses */
	__u64 seen;      /* the same: when the longest TTL of answers that have passed ends; 0: none has passed */
	__u32 seen_addr; /* the elements of addr that they had, a bit for each */
	__u32 epoch;     /* epoch_sum of both ends when the proxy allowed the question */
	__u32 addresses; /* number of elements of addr that are set */
	__u32 pad;
	struct addr addr[DNS_ADDRESSES];
	__u64 pending[DNS_PENDING]; /* dns_pending; 0: free */
};

/* The DNS message in a packet. */
struct dns_message {
	struct dns_key key;
	__u8 owner[DNS_QUESTION]; /* the question with the name of a record in the place of its own */
	__u32 end;                /* offset of the end of the message */
	__u32 ttl;                /* the lowest one of the records, in seconds */
	__u32 longest;            /* the highest one */
	__u32 seen;               /* elements of the entry's addr that the records have, a bit for each */
	struct addr addr[DNS_ADDRESSES]; /* of the records */
};

/* What an EVENT_DNS says beside the packet. Its outcome is FORWARD_DNS_QUERY or FORWARD_DNS_ANSWER. */
struct dns_report {
	__u64 latency; /* nanoseconds from the query to the answer */
	__u32 ttl;     /* the lowest one of the answer's records, in seconds */
	__u16 length;  /* of the question */
	__u8 records;  /* of the answer: elements of addr that are set */
	__u8 code;     /* of the answer (RFC 1035 4.1.1) */
	__u8 question[DNS_QUESTION]; /* as in the message; followed by zeros */
	struct addr addr[DNS_ADDRESSES];
};

#endif
