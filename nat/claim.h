/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding and claiming the NAT port of a masqueraded connection. Cost: per flow. */
#ifndef MYELIN_NAT_CLAIM_H
#define MYELIN_NAT_CLAIM_H

#include "sweep.h"
#include "write.h"
#include "../route/decide.h"

#define NAT_ATTEMPTS 16 /* candidates of a connection */
#define NAT_CLAIMS 4    /* attempts to claim a candidate, where other CPUs are faster */
#define NAT_SWEEPS 128  /* attempts to claim a free port in a sweep, where the host's sockets use ports */

/* Returns the connection's candidate for the attempt, host byte order. */
INLINE __u16 nat_candidate(const struct packet *pkt, __u32 attempt)
{
	return port_candidate(pkt, attempt, config.nat_port_min, config.nat_port_max);
}

/* Fills in the CPU's key from its packet after translation to the port. Returns the pod's side. */
INLINE int nat_key(struct cpu *c, __u16 port)
{
	return flow_key_of(&c->key, &c->snat, bpf_htons(port), &c->pkt.dst, c->pkt.dport, c->pkt.proto);
}

/* Returns 1 if a socket of the host uses the tuple that the CPU's packet would have with the port. Cost: per flow. */
APART int nat_host_uses(struct __sk_buff *skb, __u32 number)
{
	__be16 port = bpf_htons(number);
	struct bpf_sock_tuple t = {};
	struct cpu *c = cpu_this();
	const struct packet *pkt;
	const struct addr *snat;
	struct bpf_sock *sk;
	__u32 size;

	if (!c)
		return 1;
	pkt = &c->pkt;
	snat = &c->snat;
	size = pkt->family == 4 ? sizeof(t.ipv4) : sizeof(t.ipv6);
	if (pkt->family == 4) {
		t.ipv4.saddr = pkt->dst.w[3];
		t.ipv4.daddr = snat->w[3];
		t.ipv4.sport = pkt->dport;
		t.ipv4.dport = port;
	} else {
		__builtin_memcpy(t.ipv6.saddr, &pkt->dst, 16);
		__builtin_memcpy(t.ipv6.daddr, snat, 16);
		t.ipv6.sport = pkt->dport;
		t.ipv6.dport = port;
	}
	if (pkt->proto == IPPROTO_TCP)
		sk = bpf_skc_lookup_tcp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	else if (pkt->proto == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	else
		return 0;
	if (!sk)
		return 0;
	bpf_sk_release(sk);
	return 1;
}

/* Whether the entry belongs to the flow of the packet, which comes from the pod. */
INLINE bool nat_owns(const struct flow *f, const struct packet *pkt)
{
	return f->flags & FLOW_NAT && f->pod_port == pkt->sport && addr_equal(&f->pod, &pkt->src);
}

/* Whether the packet's entry uses the port. Fills in the CPU's key with that of such an entry. */
INLINE bool nat_at(struct cpu *c, const struct packet *pkt, __u16 port)
{
	struct flow *f;

	flow_key_of(&c->key, &c->snat, bpf_htons(port), &pkt->dst, pkt->dport, pkt->proto);
	f = bpf_map_lookup_elem(&flows, &c->key);
	return f && nat_owns(f, pkt);
}

/*
 * Finds the port of the CPU's packet, or of the packet that its ICMP error is about (about), in the index: the port is
 * not the first candidate. Fills in the CPU's key with that of the entry. Returns 0 if the index has none. Cost: per
 * packet of a flow that does not have its first candidate.
 */
APART int nat_indexed(__u32 about)
{
	struct cpu *c = cpu_this();
	const struct packet *pkt;
	struct port_index *at;
	__u16 port;

	if (!c)
		return 0;
	pkt = about ? &c->about : &c->pkt;
	at = port_index_find(c, pkt);
	if (!at)
		return 0;
	port = at->port;
	return nat_at(c, pkt, port) ? port : 0;
}

/* Ranks the port of another connection for the packet: enum port_rank. */
INLINE __u32 nat_rank(const struct flow *f, const struct packet *pkt)
{
	const struct flow_side *s = f->side, *pod = &f->side[f->pod_side & 1];
	bool proven = pkt->proto == IPPROTO_TCP
		      ? flow_established(f)
		      : f->flags & FLOW_REPLIED && !port_exchanged(s[0].packets, s[1].packets, f->seen);

	if (flow_expired(f, pkt->proto))
		return PORT_FREE;
	/* Also after an RST of the pod: it repeats its SYN if the peer has replied with a challenge ACK (RFC 5961). */
	if (!proven && !flow_had_time(f->created))
		return PORT_USED;
	/* Both are tested because FLOW_CLOSING may get lost when two CPUs set flags at the same time. */
	if (f->flags & FLOW_CLOSING || flow_ended(f))
		return port_rank_closed(pkt, f->seen, pod->timestamp,
					f->flags & FLOW_POD_FIN || (s[0].tcp_flags | s[1].tcp_flags) & TCP_RST);
	return proven ? PORT_USED : PORT_YIELDS;
}

int nat_entry_port_taken(__u32 port);

/* Whether a Service's client uses the port for a connection to the server of the CPU's packet. */
INLINE bool nat_crosses(__u16 port)
{
	return config.services && port_crosses(PORT_MASQUERADE, port) && nat_entry_port_taken(port);
}

/* Deletes the entry with the CPU's key, so that another connection can use its port. */
INLINE void nat_replace(struct cpu *c, const struct flow *f)
{
	if (f->flags & FLOW_INDEXED) {
		nat_tuple_set(&c->port_key, &f->pod, f->pod_port, &c->pkt.dst, c->pkt.dport, c->pkt.proto);
		bpf_map_delete_elem(&port_indexes, &c->port_key);
	}
	bpf_map_delete_elem(&flows, &c->key);
}

/*
 * Whether the CPU's packet, which has a pod's source address, is the proxy's. With legacy routing, what the proxy sends
 * is masqueraded where it leaves by a wire. Cost: per flow.
 */
INLINE bool nat_from_proxy(struct cpu *c)
{
	const struct packet *pkt = &c->pkt;
	struct flow *f;

	if (!config.l7 || !config.legacy_routing)
		return config.l7 && pkt->hook == HOOK_FROM_PROXY;
	flow_key_of(&c->proxy_key, &pkt->src, pkt->sport, &pkt->dst, pkt->dport, pkt->proto);
	f = bpf_map_lookup_elem(&flows, &c->proxy_key);
	return f && f->flags & FLOW_PROXY;
}

/* Prepares a new entry for the CPU's packet in c->flow; indexed: its port is not the first candidate. */
INLINE struct flow *nat_new(struct cpu *c, int side, bool indexed)
{
	struct flow *f = flow_new(c, side);
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);

	f->flags = indexed ? FLOW_NAT | FLOW_INDEXED : FLOW_NAT;
	if (nat_from_proxy(c))
		f->flags |= FLOW_PROXY;
	f->pod = c->pkt.src;
	f->pod_port = c->pkt.sport;
	f->pod_side = side;
	if (e) {
		f->slot = e->slot;
		decide_pod(&f->way, e);
	}
	return f;
}

/*
 * Claims the port for the CPU's packet, unless an entry that ranks above rank uses it. Returns 1 if the entry belongs
 * to the packet now. Cost: per flow.
 */
APART int nat_claim(struct __sk_buff *skb, __u32 number, __u32 rank)
{
	struct cpu *c = cpu_this();
	__u16 port = number;
	struct flow *f;
	bool indexed;
	int side;

	if (!c)
		return 0;
	side = nat_key(c, port);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (f && nat_owns(f, &c->pkt) && !flow_expired(f, c->pkt.proto))
		return 1;
	if (f && nat_rank(f, &c->pkt) > rank)
		return 0;
	if (f)
		nat_replace(c, f);
	indexed = port != nat_candidate(&c->pkt, 0);
	if (indexed && !port_index_put(c, &c->pkt, &c->snat, port))
		return 0;
	f = nat_new(c, side, indexed);
	bpf_map_update_elem(&flows, &c->key, f, BPF_NOEXIST);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || !nat_owns(f, &c->pkt))
		return 0;
	event_flow(skb, EVENT_FLOW_BEGIN, f->rule);
	return 1;
}

/* Whether neither the host nor a Service's client uses the port for the server of the CPU's packet. */
INLINE bool nat_takes(struct __sk_buff *skb, __u16 port)
{
	return !nat_crosses(port) && !nat_host_uses(skb, port);
}

/*
 * Examines a candidate. Returns 1 if the search can end: the port is free, or safe to take over, or belongs to the
 * packet already, because another CPU has set up the connection. Cost: per flow.
 */
APART int nat_offer(struct __sk_buff *skb, __u32 number)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	__u16 port = number;
	bool expired;
	struct flow *f;
	__u32 idle;

	if (!c)
		return 0;
	s = port_search(c);
	nat_key(c, port);
	f = bpf_map_lookup_elem(&flows, &c->key);
	expired = !f || flow_expired(f, c->pkt.proto);
	if (expired || nat_owns(f, &c->pkt)) {
		if (!expired || nat_takes(skb, port))
			port_offer(s, port, PORT_FREE, -1);
		return s->rank == PORT_FREE;
	}
	idle = clock_now() - f->seen;
	port_offer(s, port, nat_rank(f, &c->pkt), idle);
	port_count(s, port, port_holder(&f->pod), idle);
	return s->rank <= PORT_NEWER;
}

/* Examines candidates until one is free, or safe to take over. Cost: per flow. */
APART int nat_scan(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int i;

	if (!c)
		return 0;
	port_search_reset(port_search(c));
	for (i = 0; i < NAT_ATTEMPTS; i++) {
		if (nat_offer(skb, nat_candidate(&c->pkt, i)))
			break;
	}
	return 0;
}

/* Whether the pod that sends the CPU's packet may have another entry. Counts it in the pod's share. */
INLINE bool nat_admits(const struct cpu *c)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);

	return !e || share_take(SHARE_FLOWS, e->slot, config.flow_entries);
}

/*
 * Finds the port of a connection that does not have its first candidate: the port in the index, otherwise the best
 * candidate, which is claimed. The port is stored in port_search(c)->port. Returns NEXT_FORWARD or a drop reason:
 * DROP_NAT_NO_PORT if no candidate is available. Cost: per flow.
 */
APART enum next nat_search(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct port_search *s;
	int i, port;

	if (!c)
		return DROP_NAT_NO_PORT;
	if (flow_awaits_entry(&c->pkt))
		return DROP_ENTRY_COPIED;
	s = port_search(c);
	port = flow_syn(&c->pkt) ? nat_indexed(false) : 0; /* for others, nat_find has asked the index */
	s->port = port;
	if (port)
		return NEXT_FORWARD;
	if (!nat_admits(c))
		return DROP_FLOW_LIMIT;
	s->skip = 0;
	for (i = 0; i < NAT_CLAIMS; i++) {
		nat_scan(skb);
		if (s->rank == PORT_USED)
			break;
		/* For a free port, nat_offer has called nat_takes already. */
		if ((s->rank == PORT_FREE || nat_takes(skb, s->port)) && nat_claim(skb, s->port, s->rank))
			return NEXT_FORWARD;
		s->skip = s->port;
	}
	return DROP_NAT_NO_PORT;
}

/* Claims a free port from the range, both ends included. Returns the port, or 0. */
INLINE int nat_sweep_range(struct __sk_buff *skb, __u32 from, __u32 to)
{
	int i, port;

	for (i = 0; i < NAT_SWEEPS; i++) {
		port = sweep_range(PORT_MASQUERADE, from, to);
		if (!port)
			return 0;
		if (!nat_host_uses(skb, port) && nat_claim(skb, port, PORT_CLOSED))
			return port;
		from = port + 1;
	}
	return 0;
}

/*
 * Claims any port for the CPU's packet after nat_search has found no candidate: a free port of masquerading's half,
 * then of the other half; then one of the client that has most of the candidates. Returns the port, or 0 if there is
 * none. Slow path.
 */
APART int nat_sweep(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u32 min, max, start;
	int half, port;

	if (!c)
		return 0;
	for (half = 0; half < 2; half++) {
		min = half ? config.lb_port_min : config.nat_port_min;
		max = half ? config.lb_port_max : config.nat_port_max;
		if (!max)
			break;
		if (half)
			ports_borrowed = true;
		start = sweep_start(min, max);
		port = nat_sweep_range(skb, start, max);
		if (!port)
			port = nat_sweep_range(skb, min, start - 1);
		if (port)
			return port;
	}
	port = port_reclaim(port_search(c), &c->pkt.src, NAT_ATTEMPTS);
	return port && nat_takes(skb, port) && nat_claim(skb, port, PORT_USED) ? port : 0;
}

#endif
