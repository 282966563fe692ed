/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events about packets that are forwarded, with or without a conntrack entry: of TCP, packets with SYN, FIN or RST; of
 * other protocols, the first packet of a flow and one packet per interval. Without trace_all, other packets only pay
 * for that distinction.
 */
#ifndef MYELIN_TRACE_H
#define MYELIN_TRACE_H

#include "event.h"
#include "../bpf/l4.h"

#define TRACE_SLOTS_SHIFT 54 /* 64 minus the number of bits of an index into traced_flows */
#define TRACE_FLAGS (TCP_SYN | TCP_FIN | TCP_RST)

/* A flow whose packets are aggregated. */
struct traced_flow {
	__u32 tag;  /* of the flow's tuple; 0: the slot is free */
	__u32 time; /* of the last event, by clock_now */
	__u64 packets; /* since the last event */
	__u64 bytes;
};

/*
 * Flows of protocols other than TCP, by a hash of their tuple. Another flow with the same index takes the slot, and the
 * first one is reported again; packets since its last event are in no event, and counted as such.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << (64 - TRACE_SLOTS_SHIFT));
	__type(key, __u32);
	__type(value, struct traced_flow);
} traced_flows SEC(".maps");

INLINE bool trace_enabled(void)
{
	return config.monitor && unlikely(listening & LISTEN_TRACE);
}

/*
 * Whether the packet is known to be TCP without any of TRACE_FLAGS, by direct packet access: fragments and packets with
 * IP options or extension headers are not known to be. Cost: per packet.
 */
INLINE bool trace_is_data(const struct __sk_buff *skb, const struct packet *pkt)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 off = L3 + sizeof(struct ipv6hdr) + L4_TCP_FLAGS;

	if (pkt->proto != IPPROTO_TCP)
		return false;
	if (pkt->l4)
		return !(pkt->tcp_flags & TRACE_FLAGS);
	if (pkt->family == 4) {
		const struct iphdr *ip = data + L3;

		off = L3 + sizeof(*ip) + L4_TCP_FLAGS;
		if ((void *)(ip + 1) > end || *(const __u8 *)ip != IP_PLAIN || ip->frag_off & bpf_htons(IP_OFFSET))
			return false;
	}
	return data + off + 1 <= end && !(*(const __u8 *)(data + off) & TRACE_FLAGS);
}

INLINE __u64 trace_hash(const struct packet *pkt)
{
	__u64 ports = (__u64)pkt->hook << 40 | (__u64)pkt->proto << 32 | (__u32)pkt->sport << 16 | pkt->dport;

	return (addr_pair_hash(&pkt->src, &pkt->dst) ^ ports) * 0x94d049bb133111ebULL;
}

/* Whether the kernel's stacks talk to each other: neighbour discovery, and the outer packets of the tunnel. */
INLINE bool trace_is_internal(const struct packet *pkt)
{
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->icmp_type >= ICMPV6_ROUTER_SOLICITATION && pkt->icmp_type <= ICMPV6_REDIRECT;
	return config.tunnel && pkt->proto == IPPROTO_UDP && pkt->dport == bpf_htons(config.tunnel_port);
}

/*
 * Counts the packet in its flow's slot, and returns the slot if it is time for an event. NULL: the packet is
 * aggregated. Cost: per packet of protocols other than TCP.
 */
INLINE struct traced_flow *trace_aggregate(struct cpu *c, __u32 length)
{
	const struct packet *pkt = &c->pkt;
	__u64 hash = trace_hash(pkt);
	__u32 i = hash >> TRACE_SLOTS_SHIFT, tag = (__u32)hash | 1, now = clock_now();
	__u32 interval = config.trace_seconds * config.hz;
	struct traced_flow *t = bpf_map_lookup_elem(&traced_flows, &i);

	if (!t)
		return NULL;
	if (t->tag != tag) {
		c->trace_uncounted += t->packets;
		t->tag = tag;
		t->time = now - interval;
		t->packets = 0;
		t->bytes = 0;
	}
	t->packets++;
	t->bytes += length;
	if (!config.trace_all && clock_before(now, t->time + interval))
		return NULL;
	t->time = now;
	return t;
}

/* Sets the translated addresses and ports if those in the packet differ from those that were parsed. */
INLINE void trace_translated(const struct __sk_buff *skb, const struct packet *pkt, struct event *e)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 off = L3 + sizeof(struct ipv6hdr);
	struct packet now = {};
	__be16 *port;

	if (pkt->family == 4) {
		struct iphdr *ip = data + L3;

		off = L3 + sizeof(*ip);
		if ((void *)(ip + 1) > end)
			return;
		packet_read4(&now, ip);
	} else {
		struct ipv6hdr *ip = data + L3;

		if ((void *)(ip + 1) > end)
			return;
		packet_read6(&now, ip);
	}
	now.sport = pkt->sport;
	now.dport = pkt->dport;
	port = data + off;
	if (pkt->l4 == off && now.proto == pkt->proto && !proto_is_icmp(now.proto) && (void *)(port + 2) <= end) {
		now.sport = port[0];
		now.dport = port[1];
	}
	if (addr_equal(&now.src, &pkt->src) && addr_equal(&now.dst, &pkt->dst) && now.sport == pkt->sport &&
	    now.dport == pkt->dport)
		return;
	e->xlated_src = now.src;
	e->xlated_dst = now.dst;
	e->xlated_sport = now.sport;
	e->xlated_dport = now.dport;
}

/* Sends an event about the CPU's packet, which is forwarded, unless it is aggregated. Returns 0. Cost: see above. */
APART int trace_packet(struct __sk_buff *skb, __u32 outcome)
{
	struct cpu *c = cpu_this();
	struct trace_slot *head, *slot;
	struct traced_flow *t = NULL;
	const struct packet *pkt;
	struct event *e;

	if (!c)
		return 0;
	pkt = &c->pkt;
	/*
	 * The first fragment stands for the later ones. Of packets with an invalid layer 4, addresses and protocol are
	 * reported.
	 */
	if (l4_parse(skb, pkt) == DROP_FRAGMENT_FIRST_MISSING || pkt->fragment == FRAGMENT_LATER ||
	    trace_is_internal(pkt))
		return 0;
	if (pkt->proto == IPPROTO_TCP && pkt->l4) {
		if (!config.trace_all && !(pkt->tcp_flags & TRACE_FLAGS))
			return 0;
	} else {
		t = trace_aggregate(c, skb->len);
		if (!t)
			return 0;
	}
	slot = trace_reserve(c, &head);
	if (!slot)
		return 0;
	e = &slot->event;
	event_fill_skb(skb, pkt, e);
	e->type = EVENT_TRACE;
	e->outcome = outcome;
	e->packets = t ? t->packets : 1;
	e->bytes = t ? t->bytes : skb->len;
	if (t) {
		t->packets = 0;
		t->bytes = 0;
	}
	trace_translated(skb, pkt, e);
	trace_commit(head, slot);
	return 0;
}

/* Reports a packet that is forwarded, after it was rewritten. outcome: how. Cost: per packet. */
INLINE void trace(struct __sk_buff *skb, struct cpu *c, __u32 outcome)
{
	if (trace_enabled() && (config.trace_all || !trace_is_data(skb, &c->pkt)))
		trace_packet(skb, outcome);
}

/*
 * The same for a frame that XDP sends, with the addresses and ports in c->to. type: EVENT_FLOW_BEGIN or EVENT_TRACE.
 * Cost: per packet with TRACE_FLAGS, and per flow.
 */
APART int trace_frame(struct xdp_md *ctx, __u32 type)
{
	struct cpu *c = cpu_this();
	struct trace_slot *head, *slot;
	struct event *e;

	if (!c)
		return 0;
	slot = trace_reserve(c, &head);
	if (!slot)
		return 0;
	e = &slot->event;
	event_fill(&c->pkt, e);
	e->ifindex = ctx->ingress_ifindex;
	e->length = e->bytes = c->pkt.end;
	e->packets = 1;
	e->ethertype = c->pkt.family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	e->type = type;
	e->outcome = type == EVENT_TRACE ? FORWARD_WIRE : 0;
	e->xlated_src = c->to.src;
	e->xlated_dst = c->to.dst;
	e->xlated_sport = c->to.sport;
	e->xlated_dport = c->to.dport;
	trace_commit(head, slot);
	return 0;
}

/* Reports a frame that XDP sends. begun: its flow is new. UDP is reported at the begin of a flow only. */
INLINE void trace_xdp(struct xdp_md *ctx, const struct cpu *c, bool begun)
{
	if (!config.monitor || likely(!listening))
		return;
	if (begun && listening & LISTEN_FLOWS)
		trace_frame(ctx, EVENT_FLOW_BEGIN);
	if (listening & LISTEN_TRACE && (config.trace_all || begun || c->pkt.tcp_flags & TRACE_FLAGS))
		trace_frame(ctx, EVENT_TRACE);
}

#endif
