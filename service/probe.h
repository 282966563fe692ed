/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Health checks of backends that reply by DSR. The socket of a check connects to the backend. to_wire turns its packets
 * into those of a client that connects to the frontend and got this backend; from_wire turns the replies, which come
 * from the frontend's address, back into the backend's. So the host's stack sees a connection to the backend: routes,
 * reverse path filters and local addresses of frontends have no part in it. The agent writes the rows of a connection
 * before it connects, and deletes them after it.
 */
#ifndef MYELIN_PROBE_H
#define MYELIN_PROBE_H

#include "translate.h"
#include "../flow/host.h"

/* Whether the packet may be a health check's. Cost: per packet that the host sends, a load. */
INLINE bool probe_marked(const struct __sk_buff *skb)
{
	return (skb->mark & PROBE_MARK_MASK) == PROBE_MARK;
}

/*
 * Whether the packet leaves by a native wire to which to_wire is attached for health checks only, and is none of them.
 * Cost: per packet, two loads.
 */
INLINE bool probe_none(const struct __sk_buff *skb)
{
	return config.direct && probes_only && likely(!probe_marked(skb)) && !tunnel_device(skb);
}

/* Returns how a client's packets would travel to the backend, which is the packet's destination. */
INLINE enum probe_way probe_way_of(const struct cpu *c, const struct probe *p)
{
	struct frontend *f = frontend_find(&p->addr, p->frontend_port, p->proto, SCOPE_EXTERNAL);
	struct backend b = { .addr = c->pkt.dst, .port = c->pkt.dport };

	if (!f)
		return PROBE_NO_FRONTEND;
	if (!service_direct(f, &b, p->proto))
		return PROBE_PLAIN;
	/* Nodes of the cluster accept packets for the Service's own port and protocol only (dsr_keep). */
	if ((p->port != p->frontend_port || p->proto != c->pkt.proto) && prefix_find(&b.addr))
		return PROBE_PLAIN;
	return PROBE_DSR;
}

/*
 * Sets c->to and c->path for a client's packet to the frontend that goes to the backend, the packet's destination.
 * Returns NEXT_FORWARD, NEXT_CONTINUE if such a packet leaves by no wire, or a drop reason.
 */
INLINE enum next probe_path(struct __sk_buff *skb, struct cpu *c, const struct probe *p)
{
	struct nat_entry *n = &c->nat_entry;
	int outcome;

	__builtin_memset(n, 0, sizeof(*n));
	n->backend = c->pkt.dst;
	n->backend_port = c->pkt.dport;
	n->flags = NAT_ENTRY_DSR;
	c->nat_key.dst = p->addr;
	c->nat_key.dport = p->port;
	rewrite_request(c, n);
	outcome = service_path(skb, c);
	if (outcome)
		return outcome;
	if (c->path.action != PATH_WIRE && c->path.action != PATH_RESOLVE && c->path.action != PATH_TUNNEL)
		return NEXT_CONTINUE;
	if (c->path.mtu && l4_packet_size(skb, &c->pkt) > c->path.mtu - rewrite_grows(c))
		return DROP_TOO_BIG;
	return NEXT_FORWARD;
}

/*
 * Sends a packet with the mark of health checks as a client's. Returns a verdict, or TC_ACT_UNSPEC to leave the packet
 * as it is.
 */
APART int probe_send(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct probe *p;
	int outcome;

	if (!c || l4_parse_likely_plain(skb, &c->pkt) || c->pkt.proto != IPPROTO_TCP)
		return TC_ACT_UNSPEC;
	nat_tuple_of(&c->nat_key, &c->pkt);
	p = bpf_map_lookup_elem(&probes, &c->nat_key);
	if (!p || p->reply)
		return TC_ACT_UNSPEC;
	p->way = probe_way_of(c, p);
	if (p->way != PROBE_DSR)
		return TC_ACT_UNSPEC;
	outcome = probe_path(skb, c, p);
	if (outcome == NEXT_CONTINUE) {
		p->way = PROBE_PLAIN;
		return TC_ACT_UNSPEC;
	}
	if (outcome)
		return drop(skb, c, outcome);
	if (!nat_write(skb, &c->pkt, false, &p->addr, p->port))
		return drop(skb, c, DROP_REWRITE);
	c->pkt.dst = p->addr;
	c->pkt.dport = p->port;
	if (!rewrite_write(skb, c))
		return drop(skb, c, DROP_REWRITE);
	__sync_fetch_and_add(&p->packets, 1);
	skb->mark &= ~PROBE_MARK_MASK; /* to_wire sees the packet again after the redirection */
	return path_forward(skb, c, &c->path, c->path.action, HOOK_TO_WIRE);
}

/*
 * Turns the reply to a health check, from the frontend, into the backend's. Returns NEXT_FORWARD, NEXT_CONTINUE if the
 * packet is none, or a drop reason.
 */
APART enum next probe_reply(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct probe *p;

	if (!c || l4_parse_likely_plain(skb, &c->pkt) || c->pkt.proto != IPPROTO_TCP)
		return NEXT_CONTINUE;
	nat_tuple_of(&c->reply_key, &c->pkt);
	p = bpf_map_lookup_elem(&probes, &c->reply_key);
	if (!p || !p->reply)
		return NEXT_CONTINUE;
	if (!nat_write(skb, &c->pkt, true, &p->addr, p->port))
		return DROP_REWRITE;
	c->pkt.src = p->addr;
	c->pkt.sport = p->port;
	__sync_fetch_and_add(&p->packets, 1);
	return NEXT_FORWARD;
}

/*
 * Passes the reply to a health check to the host. Returns TC_ACT_UNSPEC if the packet is none. Cost: per packet to the
 * host, a load.
 */
INLINE int probe_from_wire(struct __sk_buff *skb, struct cpu *c)
{
	int outcome = NEXT_CONTINUE;

	if (config.direct && unlikely(address_filter_has(&frontend_filter, &c->pkt.src)))
		outcome = probe_reply(skb);
	if (outcome == NEXT_FORWARD)
		return host_pass(skb, c);
	return outcome == NEXT_CONTINUE ? TC_ACT_UNSPEC : drop(skb, c, outcome);
}

#endif
