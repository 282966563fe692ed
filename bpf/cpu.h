/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The state of a CPU: the packet that is being processed, what is being decided about it, and counters. A packet pays
 * one map lookup for all of it. Functions that are verified separately (APART) take the packet's context and scalars,
 * and find the rest here, because pointers can be passed since kernel 5.13 only. Hooks run with bottom halves disabled,
 * so that no two programs use the state of a CPU at the same time. Programs at sockets, which can be interrupted, do
 * not use it.
 */
#ifndef MYELIN_CPU_H
#define MYELIN_CPU_H

#include "packet.h"
#include "../drop/reason.h"
#include "../flow/row.h"
#include "../l7/dns/row.h"
#include "../nat/row.h"
#include "../policy/row.h"
#include "../service/row.h"

#define OUTCOME_SLOTS 128 /* a power of 2, not below OUTCOMES */

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* A bucket that each event fills, and that time empties: it bounds the CPU's events, on average and at once. */
struct event_budget {
	__u32 since; /* when level was computed, by clock_now */
	__u32 pad;
	__u64 level; /* config.hz for each event */
	__u64 lost;  /* events not sent, because of the rate or a full ring */
};

/* The addresses and ports that a packet of a Service gets, and how it is sent. */
struct rewrite {
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__u8 option; /* true: with the DSR option */
	__u8 encap;  /* true: encapsulated to via */
	__u8 pad[2];
	struct addr via; /* encap: destination of the outer header */
};

/*
 * The lookup context of a policy lookup, and the verdict. Source and destination are those of the flow's first packet.
 */
struct policy_context {
	struct addr src;
	struct addr dst;
	__u16 src_slot; /* endpoint slots of the two ends; 0: not on this node */
	__u16 dst_slot;
	__u16 port; /* of dst, or the type of an ICMP message; host byte order */
	__u8 proto;
	__u8 reply;    /* true: the packet goes from dst to src */
	__u32 rule[2]; /* verdict: the rules that decided, by direction; 0: none */
	__u8 audit;    /* verdict, true: what is denied is only reported */
	__u8 cut;      /* true: the flow may have been allowed before */
	__u8 denied;   /* verdict: the direction that is denied, plus 1; 0: none */
	__u8 proxy;    /* verdict, not 0: the flow passes through the proxy; by a rule of direction n: bit n */
	__u8 pad[4];
	struct peer_class class[2]; /* by direction: class of the peer in the endpoint's policies */
};

/* Unless stated otherwise, a field is valid for the current packet only, after one of the functions that set it. */
struct cpu {
	/*
	 * The packet. Set by packet_parse, xdp_parse and prefilter_parse; layer 4 by l4_parse; slot when the endpoint
	 * is known. decide_rewritten and service_path_pod change addresses for a lookup; functions that change the
	 * packet's length or family update it. Nearly all functions read it.
	 */
	struct packet pkt;
	/*
	 * Addresses, ports and protocol of a reply to the packet that an ICMP error quotes. Set by nat_out_icmp_error
	 * and about_reply; error_rewrite replaces them by those of the quote to be written. Read where a flow is
	 * searched by an ICMP error (nat_indexed, nat_entry_request, nat_entry_reply), and by cross_error.
	 */
	struct packet about;
	/*
	 * The packet that an ICMP error quotes. Set by inner_parse; "to" and "port" by callers of inner_write. Read by
	 * inner_write, enforce_icmp_error, about_reply and cross_error.
	 */
	struct inner inner;
	/*
	 * The forwarding decision: being made by decide, from_wire_decide, decide_rewritten, decide_masquerade,
	 * enforce_to_pod, host_enforce or nat_in, or copied from a forwarding cache entry. Read by path_store,
	 * path_resolve, policy lookups, conntrack, NAT and Services. Packets that are forwarded by a forwarding cache
	 * entry without flags, or by the per-CPU flow cache, leave it as it was.
	 */
	struct path path;
	/*
	 * The address to SNAT to: the wire's or, towards pods and the tunnel, the gateway's. Set with path, by
	 * service_needs_snat and by cross_begin. Read by path_store, nat_out and its port search, service_connect,
	 * xdp_keep and encap_source.
	 */
	struct addr snat;
	/*
	 * The node that sent a packet of the tunnel, from its outer header. Set by from_wire_extra, for packets of the
	 * tunnel device only. Read by decide_tunnel_source, path_tunnel_matches and from_wire_decide.
	 */
	struct addr outer;
	/*
	 * True if the packet was encapsulated for DSR. Cleared by from_wire_extra, set by encap_pull, read by
	 * dsr_accept, which requires it for options where lb_dispatch encapsulates.
	 */
	__u64 unwrapped;
	/*
	 * The wire of a frame in XDP, and the frame's 802.1Q tag, 0 if it has none. Set by xdp_port_enter if
	 * xdp_map_ports is set. Read by xdp_wire and xdp_port_leave.
	 */
	__u32 wire;
	__be32 tag;
	/*
	 * Key of a conntrack entry. Set by flow_key_own and nat_key for the packet, by the functions for ICMP errors
	 * for the quoted one, and by searches for a NAT port. Read by all lookups in flows, by flow_put and by
	 * nat_claim.
	 */
	struct flow_key key;
	/*
	 * A new conntrack entry, which is too large for the stack. Set by flow_new and nat_new. Read by flow_insert,
	 * nat_claim and nat_restore, which insert it.
	 */
	struct flow flow;
	/*
	 * Key of a NAT entry of Services: the tuple of requests. Set by nat_entry_request, nat_entry_reply, xdp_find,
	 * dsr_keep and error_translate. Read by all lookups in nat_entries, and for the addresses of client and
	 * frontend.
	 */
	struct nat_tuple nat_key;
	/*
	 * Key of an entry in nat_replies. Set by nat_entry_reply and nat_entry_port_used for the packet, by
	 * nat_reply_tuple for an entry. Read by all lookups in nat_replies.
	 */
	struct nat_tuple reply_key;
	/*
	 * Key of the NAT entry that has the tuple reply_key, or of a flow to be evicted. Set by nat_entry_rival and
	 * nat_evict, read by nat_reply_claim and nat_evict.
	 */
	struct nat_tuple rival_key;
	/* A new entry of nat_replies. Set by nat_reply_new, read by its callers. */
	struct nat_reply nat_reply;
	/*
	 * A new NAT entry of Services. Set by service_select or dsr_translation, completed by service_connect or
	 * xdp_keep, nat_port by the search for a port. Read by nat_entry_claim, nat_entry_claim_any and
	 * nat_entry_insert.
	 */
	struct nat_entry nat_entry;
	/*
	 * The start of the QUIC packet of a new flow. Set by quic_read and xdp_quic_read, read by quic_server_id.
	 * quic_selected is true if its connection ID selected the backend: set by service_select, read by quic_count.
	 */
	struct quic_start quic;
	__u32 quic_selected;
	/*
	 * The packet's new addresses and ports. Set by rewrite_request, rewrite_answer, dsr_read and, for ICMP errors,
	 * by error_translate. Read by service_path, service_path_pod, rewrite_write, cross_write, encap_push and the
	 * XDP functions. service_send clears option and encap for destinations on this node.
	 */
	struct rewrite to;
	/*
	 * The policy lookup. Set by policy_context_init, nat_enforce and service_enforce, the verdict by policy_lookup.
	 * Read by enforce_result, flow_new, flow_set_verdict, event_set_verdict and refuse_flow.
	 */
	struct policy_context policy;
	/* Key of an entry of names. Set and read by name_verdicts. */
	struct name_key name_key;
	/* The address that stands for a selector of names. Set and read by name_verdict. */
	struct addr name_peer;
	/* The DNS message, if that is what the packet has. Set and read by dns_pass. */
	struct dns_message dns;
	/* Key of the conntrack entry of a flow that may pass through the proxy. Set and read by nat_from_proxy. */
	struct flow_key proxy_key;
	/*
	 * Key of a port index. Set by port_index_find and nat_replace; read there and by port_index_put.
	 */
	struct nat_tuple port_key;
	/* A new port index. Set and read by port_index_put. */
	struct port_index port_index;
	/* Place of the next flow in nat_ring. Set and read by nat_ring_put and nat_evict. Kept between packets. */
	__u32 nat_ring_next;
	/*
	 * Drop reason if there is no room for a NAT entry, otherwise 0. Set by nat_entry_insert_once and
	 * nat_entry_insert, cleared and read by nat_entry_claim and nat_entry_claim_any.
	 */
	__u32 nat_full;
	/* Number of flows that were evicted. Set by nat_evict, read by the agent. Kept between packets. */
	__u64 nat_evicted;
	/* Number of packets forwarded without a NAT entry. Set by flood_stateless, read by the agent. Kept as well. */
	__u64 stateless;
	/* The ports that may still be looked at in this interval. Set and read by sweep_range. Kept between packets. */
	struct port_budget port_budget;
	/*
	 * NAT port and backend (0: none) of the closed connection between the ends of a new one. Set by nat_entry_end.
	 * Read by nat_entry_claim, which reuses the port for the same backend. service_request, dsr_keep, xdp_keep and
	 * nat_entry_continue clear reuse_backend.
	 */
	__u32 reuse_backend;
	__be16 reuse_port;
	/*
	 * True if the flow c->nat_key is claimed without a lookup of its entry before. Set and cleared by xdp_keep,
	 * read by nat_entry_known.
	 */
	bool nat_unchecked;
	/* True if such a flow has an entry. Set by nat_entry_known, cleared by nat_entry_claim. */
	bool nat_known;
	/*
	 * Memory for what is too large for the stack; valid until the next user's. Users: port_search, socket_state,
	 * cross_load, cross_sum, cross_error, icmp_sum_trimmed, dns_pass.
	 */
	__u64 scratch[32];
	/* Of drops. Kept between packets. Set and read by event_allowed; the agent reads lost. */
	struct event_budget drop_budget;
	/* The same for all other events, so that drops stay visible under any load. */
	struct event_budget trace_budget;
	/* Packets that no EVENT_TRACE counts. Kept between packets. Set by trace_aggregate, read by the agent. */
	__u64 trace_uncounted;
	/* By hook and outcome. Kept between packets. Set by count_at, read by the agent. */
	struct counter counters[HOOKS][OUTCOME_SLOTS];
};

/* Whether flows that follow the decision need a policy lookup. */
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

/* A global function: the verifier checks it once, separately from its callers. */
#define APART __attribute__((noinline))

/* Returns the state of this CPU. Never NULL, but the verifier requires callers to check. Cost: per packet. */
INLINE struct cpu *cpu_this(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

#endif
