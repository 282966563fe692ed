/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a CPU works on: the packet under way, the path and the row that are being made for it, and the counters of all that went before. One look-up a
 * packet finds it all. Functions that are verified apart take nothing but the packet's context (pointers may be passed since 5.13 only) and find the
 * rest here; no two programs of ours are under way on a CPU at once, since hooks run with bottom halves off.
 */
#ifndef MYELIN_CPU_H
#define MYELIN_CPU_H

#include "packet.h"
#include "../drop/reason.h"
#include "../flow/row.h"
#include "../nat/row.h"
#include "../policy/row.h"
#include "../service/row.h"

#define OUTCOME_SLOTS 128 /* a power of 2 */

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* Tokens for events; refilled with every second that begins. */
struct event_budget {
	__u32 second;
	__u32 left;
	__u64 lost; /* events not sent: over the rate, or the ring was full */
};

/* Both ends of a packet as a Service has them. */
struct rewrite {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u8 option; /* true: with the option of direct server return */
	__u8 encap;  /* true: inside of a packet to the node at via */
	__u8 pad[2];
	struct addr via;
};

/* What policies are asked of the flow under way, and what they said. */
struct policy_context {
	struct addr src; /* who began it … */
	struct addr dst;
	__u16 src_slot; /* … and the endpoints that are ours; 0: not ours */
	__u16 dst_slot;
	__u16 port; /* of dst, or the type of an ICMP message; host byte order */
	__u8 proto;
	__u8 reply;    /* true: the packet goes from dst to src */
	__u32 rule[2]; /* by direction; 0: nothing was said */
	__u8 audit;    /* true: what is denied is let pass */
	__u8 cut;      /* true: the flow was allowed before */
	__u8 denied;   /* the direction that is denied, and 1 more; 0: none */
	__u8 pad[5];
	struct peer_class class[2]; /* who each end is to the other's policies, by direction */
};

struct cpu {
	struct packet pkt;
	struct packet about; /* what an ICMP error speaks of, as its pod sent it */
	struct inner inner;
	struct path path;
	struct addr snat; /* what the path masquerades to */
	struct addr outer; /* the node that the tunnel brought the packet from */
	__u64 unwrapped;   /* true: taken out of a packet of another node */
	struct flow_key key;
	struct flow flow;
	struct nat_entry_key nat_key;
	struct nat_entry nat_entry;
	struct rewrite to;
	struct policy_context policy;
	struct port_key port_key;
	struct port_index port_index;
	struct port_budget port_budget;
	struct nat_entry_key reuse_key; /* of a connection that ended, where its client begins another one from the same port */
	__u32 reuse_backend;          /* its backend; 0: there is none */
	__u32 node_anchor_first;      /* true: the last request was found behind the node's anchor */
	__u64 scratch[32]; /* for what is too large for the stack: headers, chunks of a packet */
	struct event_budget budget;
	struct counter counters[HOOKS][OUTCOME_SLOTS];
};

/* Whether policies must be asked about packets on the path. */
INLINE bool policy_enforced(const struct path *p)
{
	return config.policy && p->flags & PATH_POLICY;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* Verified apart, whatever calls it. */
#define APART __attribute__((noinline))

INLINE struct cpu *cpu_this(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

#endif
