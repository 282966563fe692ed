/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Services per packet: for requests that no socket hook translated, and for clients outside the cluster. A packet is a
 * request from a client to a frontend, or a reply from a backend to a client. One lookup finds its NAT entry; then it
 * is forwarded like any other packet.
 */
#ifndef MYELIN_TRANSLATE_H
#define MYELIN_TRANSLATE_H

#include "begin.h"
#include "enforce.h"
#include "error.h"
#include "pool.h"
#include "quic.h"
#include "service.h"
#include "../bpf/icmp/reset.h"

INLINE bool source_allowed(__u32 service, const struct addr *a)
{
	struct source_range_key key = { .length = 160, .service = service };

	__builtin_memcpy(key.addr, a, sizeof(key.addr));
	return bpf_map_lookup_elem(&source_ranges, &key);
}

/*
 * Whether the backend can reply by DSR: it is a pod of one of the cluster's nodes, or any host that accepts IPIP and
 * has the Service's address.
 */
INLINE bool backend_direct(const struct backend *b)
{
	struct prefix *p = prefix_find(&b->addr);

	return p ? !(p->flags & PREFIX_NODE) : config.lb_dispatch == DISPATCH_IPIP && !config.tunnel;
}

/* Whether the backend, if it is on another node, replies to external clients by DSR. */
INLINE bool service_direct(const struct frontend *f, const struct backend *b, __u8 proto)
{
	if (!config.direct || !backend_direct(b))
		return false;
	if (f->flags & (FRONTEND_DSR | FRONTEND_SNAT))
		return f->flags & FRONTEND_DSR;
	return config.lb_mode == LB_DSR || (config.lb_mode == LB_HYBRID && proto == IPPROTO_TCP);
}

/*
 * Returns the client's affinity key, as socket hooks compute it: a pod's flows may be translated by either. Cost: per
 * flow.
 */
INLINE struct addr service_client(const struct packet *pkt)
{
	struct pod_link *l = pkt->hook == HOOK_FROM_POD ? bpf_map_lookup_elem(&pod_links, &pkt->ifindex) : NULL;
	struct addr client = pkt->src;

	if (l && l->netns_cookie)
		client_key(&client, l->netns_cookie, pkt->family == 6);
	return client;
}

/* Returns the number that selects the backend of the packet's new flow: the flow's hash for Maglev, else random. */
INLINE __u32 service_random(const struct frontend *f, const struct packet *pkt)
{
	return f->flags & FRONTEND_MAGLEV ? service_hash(pkt) : bpf_get_prandom_u32();
}

/*
 * Selects a backend for the packet's new flow, and fills in c->nat_entry. Returns NEXT_FORWARD, NEXT_CONTINUE or a drop
 * reason. Cost: per flow.
 */
APART enum next service_select(__u32 scope)
{
	struct cpu *c = cpu_this();
	struct nat_entry *n;
	struct backend *b = NULL;
	struct packet *pkt;
	struct frontend *f;
	struct addr client;

	if (!c)
		return NEXT_CONTINUE;
	pkt = &c->pkt;
	n = &c->nat_entry;
	f = frontend_find(&pkt->dst, pkt->dport, pkt->proto, scope);
	if (!f)
		return NEXT_CONTINUE;
	if (scope == SCOPE_EXTERNAL && f->flags & FRONTEND_RANGES && !source_allowed(f->service, &pkt->src))
		return DROP_SOURCE_RANGE;
	__builtin_memset(n, 0, sizeof(*n));
	if (config.quic)
		n->backend_id = quic_choose(c, f, scope, &b);
	c->quic_selected = n->backend_id;
	if (!n->backend_id) {
		client = f->affinity ? service_client(pkt) : pkt->src;
		n->backend_id = service_choose(f, &client, scope, service_random(f, pkt), &b);
	}
	if (!n->backend_id || !b)
		return f->flags & (scope == SCOPE_INTERNAL ? FRONTEND_DROP_INTERNAL : FRONTEND_DROP_EXTERNAL) ?
			       DROP_NO_LOCAL_BACKEND :
			       DROP_NO_BACKEND;
	if (scope == SCOPE_INTERNAL && addr_is4(&b->addr) != (pkt->family == 4))
		return DROP_CROSS_FAMILY;
	if (scope == SCOPE_EXTERNAL && addr_is4(&b->addr) == (pkt->family == 4) && service_direct(f, b, pkt->proto))
		n->flags = NAT_ENTRY_DSR;
	/* A connection ID may select another backend than hashing does. */
	n->consistent = f->flags & FRONTEND_MAGLEV && !f->affinity && !c->quic_selected;
	n->service = f->service;
	n->backend = b->addr;
	n->backend_port = b->port;
	n->stat = service_stat_find(f->service, b);
	nat_entry_set_created(n);
	n->seen = clock_now();
	rewrite_request(c, n); /* without SNAT, which depends on the path */
	return NEXT_FORWARD;
}

/*
 * Deletes the entry of a flow that has ended, and keeps its port for the next connection from the same client port: the
 * TIME-WAIT of the backend accepts that one, but not another client's.
 */
INLINE void nat_entry_end(struct cpu *c, const struct nat_entry *t)
{
	if ((t->flags & (NAT_ENTRY_SNAT | NAT_ENTRY_GONE)) == NAT_ENTRY_SNAT) {
		c->reuse_port = t->nat_port;
		c->reuse_backend = t->backend_id;
	}
	nat_entry_delete(c, &c->nat_key, t);
}

/*
 * Finds the NAT entry of a request and sets c->to, or selects a backend. Returns NEXT_FORWARD, NEXT_NEW_FLOW,
 * NEXT_CONTINUE or a drop reason.
 */
INLINE enum next service_request(struct __sk_buff *skb, struct cpu *c, __u32 scope)
{
	bool syn = flow_syn(&c->pkt), tcp = c->pkt.proto == IPPROTO_TCP;
	struct nat_entry *t = nat_entry_request(c, &c->pkt);
	int outcome;

	if (t && t->flags & NAT_ENTRY_GONE && tcp && !syn)
		return DROP_BACKEND_GONE;
	c->reuse_backend = 0;
	if (t && (t->flags & NAT_ENTRY_GONE || (syn && nat_entry_closing(t)) ||
		  (!tcp && nat_entry_expired(t, c->pkt.proto)))) {
		nat_entry_end(c, t);
		t = NULL;
	}
	if (likely(t)) {
		nat_entry_count(t, &c->pkt, skb->len);
		rewrite_request(c, t);
		return NEXT_FORWARD;
	}
	quic_read(skb, c);
	outcome = service_select(scope);
	if (outcome)
		return outcome;
	return flow_awaits_entry(&c->pkt) ? DROP_ENTRY_COPIED : NEXT_NEW_FLOW;
}

/* Inserts c->nat_entry. Returns NEXT_FORWARD or a drop reason. Cost: per flow. */
INLINE enum next service_claim(const struct nat_entry *n)
{
	int outcome = nat_entry_claim();

	return outcome == DROP_NAT_NO_PORT && n->flags & NAT_ENTRY_SNAT ? nat_entry_claim_any() : outcome;
}

/*
 * Creates the NAT entry of the new flow, with SNAT to snat unless that is NULL, and counts the flow's first packet.
 * Returns NEXT_FORWARD or a drop reason. Cost: per flow.
 */
INLINE enum next service_connect(struct __sk_buff *skb, struct cpu *c, const struct addr *snat)
{
	struct nat_entry *n = &c->nat_entry;
	enum next outcome;

	if (snat) {
		n->snat = *snat;
		n->flags |= NAT_ENTRY_SNAT;
		if (addr_is_zero(snat))
			return DROP_NAT_NO_ADDRESS;
	}
	if (unlikely(flood_stateless(c))) {
		service_stat_first(n->stat, skb->len);
		rewrite_request(c, n);
		return NEXT_FORWARD;
	}
	if (!share_take(SHARE_NAT_ENTRIES, c->path.src_slot, config.nat_entry_max))
		return DROP_FLOW_LIMIT;
	nat_entry_first(n, &c->pkt, skb->len);
	outcome = service_claim(n);
	if (outcome == DROP_NAT_NO_PORT && !(n->flags & (NAT_ENTRY_SNAT | NAT_ENTRY_DSR))) {
		/*
		 * The client uses one port for two Services with the same backend, which could not tell the flows
		 * apart: the second flow gets another port.
		 */
		n->snat = c->nat_key.src;
		n->flags |= NAT_ENTRY_SNAT;
		outcome = service_claim(n);
	}
	if (outcome)
		return outcome;
	service_stat_first(n->stat, skb->len);
	rewrite_request(c, n);
	quic_count(c, skb->len);
	endpoint_mark_services(c->path.src_slot);
	endpoint_mark_services(c->path.dst_slot);
	event_flow(skb, EVENT_FLOW_BEGIN, NULL);
	return NEXT_FORWARD;
}

/* Drops the packet, and sends a TCP reset or an ICMP error where kube-proxy does or the configuration asks for it. */
INLINE int service_refuse(struct __sk_buff *skb, struct cpu *c, int outcome)
{
	if (config.no_backend_drop && outcome == DROP_NO_BACKEND)
		return drop(skb, c, outcome);
	/* The reply comes from the Service's address. */
	c->pkt.for_host = outcome == DROP_NO_BACKEND || outcome == DROP_NO_SERVICE;
	/* An ICMP error during connect() takes effect only with the next segment. */
	if (c->pkt.for_host && c->pkt.proto == IPPROTO_TCP)
		return tcp_reset(skb, outcome);
	if (c->pkt.for_host || outcome == DROP_NO_ROUTE || outcome == DROP_BLACKHOLE)
		return icmp_refuse(skb, outcome, 0);
	if (outcome == DROP_BACKEND_GONE)
		return tcp_reset(skb, outcome);
	return refuse_flow(skb, c, outcome);
}

/*
 * Rewrites a request whose flow passes through the proxy, and lets the hook process the result, which is a packet from
 * the client to the backend. Cost: per packet.
 */
INLINE int service_repeat(struct __sk_buff *skb, struct cpu *c)
{
	if (cross_family(c))
		return service_refuse(skb, c, DROP_CROSS_FAMILY);
	c->to.option = c->to.encap = false;
	if (!rewrite_write(skb, c))
		return drop(skb, c, nat_refusal(&c->pkt));
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Rewrites the packet and sends it along c->path, or drops it for the reason in outcome, if not 0. Cost: per packet. */
APART int service_send(struct __sk_buff *skb, __u32 outcome)
{
	struct cpu *c = cpu_this();
	int verdict;

	if (!c)
		return TC_ACT_SHOT;
	if (!outcome && policy_enforced(&c->path))
		outcome = service_enforce(skb);
	if (config.l7 && unlikely(outcome == NEXT_PROXY))
		return service_repeat(skb, c);
	if (unlikely(outcome))
		return service_refuse(skb, c, outcome);
	if (c->path.action == PATH_POD || c->path.action == PATH_STACK)
		c->to.option = c->to.encap = false;
	if (c->path.mtu)
		c->path.mtu -= rewrite_grows(c);
	verdict = path_refuse(skb, c, &c->path, c->path.action);
	if (verdict)
		return verdict;
	if (!rewrite_write(skb, c))
		return drop(skb, c, cross_family(c) ? cross_reason(&c->pkt) : nat_refusal(&c->pkt));
	return path_forward(skb, c, &c->path, c->path.action, c->pkt.hook);
}

/*
 * Releases the tuple of replies to a connection that begins, if a closed connection to a Service has it: the client
 * uses its port again, for the address of the backend itself. Replies would get the Service's address. Cost: per TCP
 * connection, a lookup.
 */
APART int service_release(void)
{
	struct cpu *c = cpu_this();
	struct nat_reply *r;
	struct nat_entry *t;

	if (!c)
		return 0;
	nat_tuple_set(&c->reply_key, &c->pkt.dst, c->pkt.dport, &c->pkt.src, c->pkt.sport, c->pkt.proto);
	r = bpf_map_lookup_elem(&nat_replies, &c->reply_key);
	if (likely(!r))
		return 0;
	c->rival_key = r->request;
	t = bpf_map_lookup_elem(&nat_entries, &c->rival_key);
	if (!t)
		bpf_map_delete_elem(&nat_replies, &c->reply_key);
	else if (nat_entry_closing(t))
		nat_entry_delete(c, &c->rival_key, t);
	return 0;
}

/* Finds the entry of a reply, and sets c->to. Returns false if the packet is none. Cost: per packet. */
INLINE bool service_answer(struct cpu *c, __u32 length)
{
	struct nat_reply *r = nat_entry_reply(c, &c->pkt);

	if (!r) {
		if (flow_syn(&c->pkt))
			service_release();
		return false;
	}
	nat_reply_count(r, &c->pkt, length);
	rewrite_answer(c);
	return true;
}

INLINE bool service_port(const struct packet *pkt)
{
	return port_may_be(PORT_SERVICE, bpf_ntohs(pkt->dport));
}

/*
 * Handles a packet to a Service's address, or to the node's own (own): sets c->to and c->path. Returns NEXT_FORWARD,
 * NEXT_CONTINUE or a drop reason. Cost: per packet.
 */
APART enum next service_from_wire(struct __sk_buff *skb, __u32 own)
{
	struct cpu *c = cpu_this();
	const struct addr *snat;
	int outcome, found;

	if (!c || l4_parse_likely_plain(skb, &c->pkt))
		return NEXT_CONTINUE;
	c->path.action = PATH_NONE;
	if (l4_is_icmp_error(&c->pkt))
		return service_error(skb, c);
	if (!proto_has_ports(c->pkt.proto))
		return NEXT_CONTINUE;
	if (own && service_port(&c->pkt) && service_answer(c, skb->len))
		return service_path(skb, c);
	if (own && !node_port_may_be(&c->pkt))
		return NEXT_CONTINUE;
	found = service_request(skb, c, SCOPE_EXTERNAL);
	if (found != NEXT_FORWARD && found != NEXT_NEW_FLOW)
		return found;
	outcome = service_path(skb, c);
	if (outcome || found == NEXT_FORWARD)
		return outcome;
	outcome = service_begin(c, &snat);
	return outcome ? outcome : service_connect(skb, c, snat);
}

/*
 * Handles a packet to a pod that is a client or a backend; c->path leads to the pod. Returns NEXT_FORWARD,
 * NEXT_CONTINUE or a drop reason. Cost: per packet.
 */
APART enum next service_to_client(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse_likely_plain(skb, &c->pkt))
		return NEXT_CONTINUE;
	if (l4_is_icmp_error(&c->pkt))
		return service_error(skb, c);
	if (!proto_has_ports(c->pkt.proto) || !service_answer(c, skb->len))
		return NEXT_CONTINUE;
	/* The stack drops packets from a wire with one of the node's own addresses as source. */
	if (config.legacy_routing && c->path.action == PATH_STACK && address_owner(&c->to.src) == OWNER_NODE)
		c->path.action = PATH_POD;
	return NEXT_FORWARD;
}

/*
 * Translates the host's reply to a client of a Service. Returns NEXT_FORWARD, NEXT_CONTINUE or a drop reason. Cost: per
 * packet that may be one.
 */
APART enum next service_from_host(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse_likely_plain(skb, &c->pkt) || !proto_has_ports(c->pkt.proto) ||
	    !service_answer(c, skb->len))
		return NEXT_CONTINUE;
	return rewrite_write(skb, c) ? NEXT_FORWARD : nat_refusal(&c->pkt);
}

/*
 * Translates the host's reply to a client that is a pod of this node. Returns NEXT_FORWARD, NEXT_CONTINUE or a drop
 * reason. Cost: per packet from the host to a pod.
 */
INLINE enum next service_to_pod(struct __sk_buff *skb, struct cpu *c)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);

	return e && endpoint_uses_services(e->slot) ? service_from_host(skb) : NEXT_CONTINUE;
}

#endif
