/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Events that report drops and flows to the agent. Slow path. */
#ifndef MYELIN_EVENT_H
#define MYELIN_EVENT_H

#include "../bpf/cpu.h"
#include "../bpf/l4.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

enum event_type {
	EVENT_DROP,
	EVENT_FLOW_BEGIN, /* a conntrack or NAT entry was created; rule: what allowed the flow */
	EVENT_FLOW_END,
	EVENT_TRACE,  /* a packet was forwarded: TCP with SYN, FIN or RST; of others, one per flow and interval */
	EVENT_SOCKET, /* a socket that connects to a Service gets the address of a backend */
	EVENT_DNS,    /* a DNS message passes without the proxy: see struct dns_report */
};

enum event_flag {
	EVENT_AUDIT = 1,   /* policies deny the packet, but are only audited */
	EVENT_REQUEST = 2, /* the packet goes in the direction in which its flow was opened */
	EVENT_REPLY = 4,   /* the packet goes in the opposite direction. Neither flag: not known to the datapath */
};

struct event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 length; /* bytes from the Ethernet header on */
	struct addr src;
	struct addr dst;
	struct addr xlated_src; /* the addresses and ports after translation; zero: the packet is not translated */
	struct addr xlated_dst;
	__be16 sport;
	__be16 dport;
	__be16 xlated_sport;
	__be16 xlated_dport;
	__be16 ethertype;
	__u16 slot; /* the packet's endpoint; 0: unknown */
	__u8 type; /* enum event_type */
	__u8 hook;    /* enum hook */
	__u8 outcome; /* enum outcome: EVENT_DROP: the drop reason; EVENT_TRACE, EVENT_DNS: how it was forwarded */
	__u8 proto;
	__u8 tcp_flags;
	__u8 family; /* 4, 6, or 0 for other packets */
	__u8 icmp_type; /* of ICMP and ICMPv6 */
	__u8 icmp_code;
	struct mac smac;
	__u16 flags;   /* enum event_flag */
	__u64 packets; /* EVENT_TRACE: packets that the event stands for, and their bytes; at least the packet itself */
	__u64 bytes;
	__u64 cookie;  /* EVENT_SOCKET: of the socket */
	__u64 cgroup;  /* EVENT_SOCKET: ID of the cgroup of the process */
	__u64 netns;   /* EVENT_SOCKET: cookie of the socket's network namespace */
	__u32 rule[2]; /* the policy rules that decided, by direction; 0: none */
	__u32 denied;  /* the direction that was denied (enum policy_direction), plus 1; 0: none */
};

struct trace_slot {
	__u64 seq; /* of the CPU's event, from 1; 0: it is being written. In a CPU's first slot: of its newest event */
	struct event event;
};

/*
 * The last events of each CPU, except drops and those of sockets: config.trace_slots of them after a first slot, for
 * one CPU after the other. The agent reads them when a client asks for flows. It is not woken for them, and they
 * survive it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_slot);
} traces SEC(".maps");

/* Fills in what the parsed packet holds, and clears all other fields. */
INLINE void event_fill(const struct packet *pkt, struct event *e)
{
	__builtin_memset(e, 0, sizeof(*e));
	e->time_ns = bpf_ktime_get_ns();
	e->src = pkt->src;
	e->dst = pkt->dst;
	e->sport = pkt->sport;
	e->dport = pkt->dport;
	e->slot = pkt->slot;
	e->hook = pkt->hook;
	e->proto = pkt->proto;
	e->tcp_flags = pkt->tcp_flags;
	e->icmp_type = pkt->icmp_type;
	e->family = pkt->family;
}

/* Fills in the verdict of the policy lookup, if the event has one: flow events, and drops by policies. */
INLINE void event_set_verdict(const struct cpu *c, struct event *e)
{
	bool denied = e->outcome >= DROP_POLICY_DENIED && e->outcome <= DROP_POLICY_PEER_UNKNOWN;
	bool verdict = e->type != EVENT_DROP || denied;

	e->rule[0] = verdict ? c->policy.rule[0] : 0;
	e->rule[1] = verdict ? c->policy.rule[1] : 0;
	e->denied = verdict ? c->policy.denied : 0;
	if (e->type == EVENT_FLOW_BEGIN && e->denied)
		e->flags |= EVENT_AUDIT;
}

/*
 * Whether the budget allows one more event. rate: events per second; burst: events at once, 0: as many as per second.
 * Counts the lost ones. Cost: per event.
 */
INLINE bool event_allowed(struct event_budget *budget, __u32 rate, __u32 burst)
{
	__u32 now = clock_now();
	__u64 drained = (__u64)(now - budget->since) * rate; /* jiffies × events/s: config.hz of them are an event */

	budget->since = now;
	budget->level -= drained < budget->level ? drained : budget->level;
	if (budget->level + config.hz > (__u64)(burst ? burst : rate) * config.hz) {
		budget->lost++;
		return false;
	}
	budget->level += config.hz;
	return true;
}

/*
 * Reserves room for an event in the ring buffer. Returns NULL if the budget or the ring is exhausted; the loss is
 * counted. rate, burst: as of event_allowed. Slow path.
 */
INLINE struct event *event_reserve(struct event_budget *budget, __u32 rate, __u32 burst)
{
	struct event *e;

	if (!event_allowed(budget, rate, burst))
		return NULL;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		budget->lost++;
	return e;
}

/* Returns the index of this CPU's first slot. */
INLINE __u32 trace_first(void)
{
	return bpf_get_smp_processor_id() * (config.trace_slots + 1);
}

/* Returns the index of the slot for the next event of the CPU whose first slot, head, has the index first. */
INLINE __u32 trace_next(const struct trace_slot *head, __u32 first)
{
	return first + 1 + (head->seq & (config.trace_slots - 1));
}

/*
 * Returns the slot for the CPU's next event and sets *head; NULL if the budget is exhausted, which is counted. The
 * event is in the ring after trace_commit. Nothing on this CPU may write another one in between: not for programs that
 * run in process context. Cost: per event.
 */
INLINE struct trace_slot *trace_reserve(struct cpu *c, struct trace_slot **head)
{
	__u32 i = trace_first();
	struct trace_slot *slot;

	if (!event_allowed(&c->trace_budget, config.trace_rate, config.trace_burst))
		return NULL;
	*head = bpf_map_lookup_elem(&traces, &i);
	if (!*head)
		goto lost;
	i = trace_next(*head, i);
	slot = bpf_map_lookup_elem(&traces, &i);
	if (!slot || !config.trace_slots)
		goto lost;
	*(volatile __u64 *)&slot->seq = 0;
	return slot;
lost:
	c->trace_budget.lost++;
	return NULL;
}

INLINE void trace_commit(struct trace_slot *head, struct trace_slot *slot)
{
	__u64 seq = head->seq + 1;

	barrier();
	*(volatile __u64 *)&slot->seq = seq;
	*(volatile __u64 *)&head->seq = seq;
}

/* Fills in an event about a packet in tc, but for its verdict. */
INLINE void event_fill_skb(struct __sk_buff *skb, const struct packet *pkt, struct event *e)
{
	event_fill(pkt, e);
	e->ifindex = skb->ifindex;
	e->length = skb->len;
	e->ethertype = skb->protocol;
	bpf_skb_load_bytes(skb, ETH_ALEN, &e->smac, ETH_ALEN);
	if (proto_is_icmp(pkt->proto) && pkt->l4)
		bpf_skb_load_bytes(skb, pkt->l4 + 1, &e->icmp_code, 1);
}

/* Sends a drop event about the packet, if the CPU's budget allows it. Slow path. */
INLINE void event_send_drop(struct __sk_buff *skb, struct cpu *c, __u32 reason)
{
	struct event *e = event_reserve(&c->drop_budget, config.event_rate, config.event_burst);

	if (!e)
		return;
	event_fill_skb(skb, &c->pkt, e);
	e->type = EVENT_DROP;
	e->outcome = reason;
	event_set_verdict(c, e);
	bpf_ringbuf_submit(e, 0);
}

/* Sends a flow event about the packet, if the CPU's budget allows it. Slow path. */
INLINE void event_send_flow(struct __sk_buff *skb, struct cpu *c, __u32 type)
{
	struct trace_slot *head, *slot = trace_reserve(c, &head);

	if (!slot)
		return;
	event_fill_skb(skb, &c->pkt, &slot->event);
	slot->event.type = type;
	event_set_verdict(c, &slot->event);
	trace_commit(head, slot);
}

/* Sends an event about the packet. reason: of EVENT_DROP. Returns 0. Slow path. */
APART int event_send(struct __sk_buff *skb, __u32 type, __u32 reason)
{
	struct cpu *c = cpu_this();

	if (!c)
		return 0;
	if (type == EVENT_DROP)
		event_send_drop(skb, c, reason);
	else
		event_send_flow(skb, c, type);
	return 0;
}

/* Sends an event about a frame that XDP drops. Slow path. */
INLINE void event_send_xdp(struct xdp_md *ctx, struct cpu *c, __u32 outcome)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct event *e;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return;
	e = event_reserve(&c->drop_budget, config.event_rate, config.event_burst);
	if (!e)
		return;
	event_fill(&c->pkt, e);
	e->ifindex = ctx->ingress_ifindex;
	e->length = ctx->data_end - ctx->data;
	e->ethertype = eth->h_proto;
	__builtin_memcpy(&e->smac, eth->h_source, ETH_ALEN);
	e->type = EVENT_DROP;
	e->outcome = outcome;
	bpf_ringbuf_submit(e, 0);
}

/* Whether the begin of a flow is reported: to a monitor, or as a policy's verdict. Cost: per flow. */
INLINE bool event_flow_wanted(__u32 type, const __u32 *rule)
{
	if (!config.monitor || !listening)
		return false;
	if (listening & LISTEN_FLOWS)
		return true;
	return !config.no_verdicts && type == EVENT_FLOW_BEGIN && rule && (rule[0] | rule[1]);
}

/* Reports that policies deny the packet, which passes because they are only audited. Cost: per flow. */
INLINE void event_audit(struct __sk_buff *skb)
{
	if (config.monitor && listening & (config.no_verdicts ? LISTEN_FLOWS : LISTEN_FLOWS | LISTEN_TRACE))
		event_send(skb, EVENT_FLOW_BEGIN, 0);
}

/*
 * Sends a flow event if it is wanted, with the rules that allowed the flow, by direction (NULL: not known here).
 * Cost: per flow.
 */
INLINE void event_flow(struct __sk_buff *skb, __u32 type, const __u32 *rule)
{
	struct cpu *c;

	if (!event_flow_wanted(type, rule))
		return;
	c = cpu_this();
	if (!c)
		return;
	c->policy.rule[0] = rule ? rule[0] : 0;
	c->policy.rule[1] = rule ? rule[1] : 0;
	c->policy.denied = 0;
	event_send(skb, type, 0);
}

#endif
