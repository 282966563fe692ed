/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Events that report drops and flows to the agent. Slow path. */
#ifndef MYELIN_EVENT_H
#define MYELIN_EVENT_H

#include "../bpf/cpu.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

enum event_type {
	EVENT_DROP,
	EVENT_FLOW_BEGIN,
	EVENT_FLOW_END,
};

struct event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 length; /* bytes from the Ethernet header on */
	struct addr src;
	struct addr dst;
	__be16 sport;
	__be16 dport;
	__be16 ethertype;
	__u16 slot; /* the packet's endpoint; 0: unknown */
	__u8 type; /* enum event_type */
	__u8 hook;    /* enum hook */
	__u8 outcome; /* EVENT_DROP: the drop reason */
	__u8 proto;
	__u8 tcp_flags;
	__u8 family; /* 4, 6, or 0 for other packets */
	struct mac smac;
	__u32 rule[2]; /* the policy rules that decided, by direction; 0: none */
	__u32 denied;  /* the direction that was denied (enum policy_direction), plus 1; 0: none */
};

/* Fills in what the parsed packet holds. */
INLINE void event_fill(const struct packet *pkt, struct event *e)
{
	e->time_ns = bpf_ktime_get_ns();
	e->src = pkt->src;
	e->dst = pkt->dst;
	e->sport = pkt->sport;
	e->dport = pkt->dport;
	e->slot = pkt->slot;
	e->hook = pkt->hook;
	e->proto = pkt->proto;
	e->tcp_flags = pkt->tcp_flags;
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
}

/*
 * Reserves room for an event in the ring buffer. Returns NULL if the CPU's budget or the ring is exhausted. Slow path.
 */
INLINE struct event *event_reserve(struct cpu *c)
{
	__u32 second = clock_now() / (config.hz ?: 1);
	struct event *e;

	if (c->budget.second != second) {
		c->budget.second = second;
		c->budget.left = config.event_rate;
	}
	e = c->budget.left ? bpf_ringbuf_reserve(&events, sizeof(*e), 0) : NULL;
	if (!e)
		c->budget.lost++;
	else
		c->budget.left--;
	return e;
}

/* Sends an event about the packet, if the CPU's budget allows it. Returns 0. Slow path. */
APART int event_send(struct __sk_buff *skb, __u32 type, __u32 outcome)
{
	struct cpu *c = cpu_this();
	struct event *e;

	if (!c || !(e = event_reserve(c)))
		return 0;
	event_fill(&c->pkt, e);
	e->ifindex = skb->ifindex;
	e->length = skb->len;
	e->ethertype = skb->protocol;
	bpf_skb_load_bytes(skb, ETH_ALEN, &e->smac, ETH_ALEN);
	e->type = type;
	e->outcome = outcome;
	event_set_verdict(c, e);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Sends an event about a frame that XDP drops. Slow path. */
INLINE void event_send_xdp(struct xdp_md *ctx, struct cpu *c, __u32 outcome)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct event *e;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end || !(e = event_reserve(c)))
		return;
	event_fill(&c->pkt, e);
	e->ifindex = ctx->ingress_ifindex;
	e->length = ctx->data_end - ctx->data;
	e->ethertype = eth->h_proto;
	__builtin_memcpy(&e->smac, eth->h_source, ETH_ALEN);
	e->type = EVENT_DROP;
	e->outcome = outcome;
	e->rule[0] = e->rule[1] = e->denied = 0;
	bpf_ringbuf_submit(e, 0);
}

/*
 * Sends a flow event if a monitor is attached, with the rules that allowed the flow, by direction (NULL: not known
 * here). Cost: per flow.
 */
INLINE void event_flow(struct __sk_buff *skb, __u32 type, const __u32 *rule)
{
	struct cpu *c;

	if (!config.monitor || !listening)
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
