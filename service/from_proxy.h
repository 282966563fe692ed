/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the proxy sends. Its connections have the addresses of the client and the server, so that a packet is forwarded
 * as that of the pod or peer whose address it has, but never to the proxy again.
 */
#ifndef MYELIN_FROM_PROXY_H
#define MYELIN_FROM_PROXY_H

#include "decide.h"
#include "translate.h"

/* Decides c->path for the proxy's packet. Returns NEXT_FORWARD or a drop reason. Slow path. */
APART enum next from_proxy_decide(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	enum next outcome;

	if (!c)
		return DROP_NO_ENDPOINT;
	if (packet_family_off(&c->pkt))
		return DROP_UNSUPPORTED_FAMILY;
	__builtin_memset(&c->path, 0, sizeof(c->path));
	__builtin_memset(&c->snat, 0, sizeof(c->snat));
	if (addr_is_multicast(&c->pkt.dst))
		return DROP_MULTICAST;
	if (addr_is_martian(&c->pkt.dst))
		return DROP_MARTIAN;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);
	if (e)
		c->path.src_slot = e->slot;
	outcome = decide_route(skb, c);
	if (c->path.dst_slot > SLOT_HOST)
		c->path.action = PATH_POD; /* with legacy routing, too: the stack would not know the source's link */
	if (config.services && (endpoint_uses_services(c->path.src_slot) || endpoint_uses_services(c->path.dst_slot)))
		c->path.flags |= PATH_ANSWERS;
	if (!outcome && c->path.action != PATH_RESOLVE)
		path_store(c, false);
	return outcome;
}

/* Whether policies allow the CPU's packet through the proxy, as a packet of the flow's opener or as a reply. */
INLINE bool from_proxy_allowed(struct cpu *c, bool reply)
{
	policy_context_init(c, reply);
	c->policy.cut = true;
	return !policy_lookup(&c->policy) && c->policy.proxy;
}

/*
 * Records that the server's end of the flow has sent the CPU's packet, which may be the proxy's own reply. Packets to
 * the server are those that the client has sent, which are counted already. Cost: per packet of the proxy.
 */
INLINE void from_proxy_track(struct __sk_buff *skb, const struct cpu *c, struct flow *f, int side)
{
	struct flow_side *s = flow_side(f, side);

	if (side == f->origin)
		return;
	f->seen = clock_now();
	if (unlikely(!(f->flags & FLOW_REPLIED)))
		f->flags |= FLOW_REPLIED;
	if (unlikely(c->pkt.tcp_flags & ~s->tcp_flags))
		flow_tcp(skb, &c->pkt, f, s);
}

/*
 * Enforces policies on the proxy's packet, whose flow has an entry since its first packet went to the proxy. If the
 * entry is gone, it is not known which end opened the flow: policies must allow it through the proxy from one end.
 * Returns NEXT_FORWARD or a drop reason. Cost: per packet of the proxy.
 */
APART enum next from_proxy_enforce(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct flow *f;
	int side;

	if (!c)
		return DROP_POLICY_NO_RULE;
	if (l4_is_icmp_error(&c->pkt))
		return NEXT_FORWARD; /* of the proxy's network namespace, about its own connections */
	side = flow_key_own(c);
	f = enforce_entry(c);
	if (f) {
		from_proxy_track(skb, c, f, side);
		return enforce_flow(skb, side, true);
	}
	if (from_proxy_allowed(c, false) || (!flow_syn(&c->pkt) && from_proxy_allowed(c, true)))
		return NEXT_FORWARD;
	return DROP_POLICY_NO_RULE;
}

/* Forwards the proxy's packet along c->path. */
APART int from_proxy_forward(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome, verdict;

	if (!c)
		return TC_ACT_SHOT;
	verdict = path_refuse(skb, c, &c->path, c->path.action);
	if (verdict)
		return verdict;
	outcome = l4_parse(skb, &c->pkt);
	if (!outcome && policy_enforced(&c->path))
		outcome = from_proxy_enforce(skb);
	if (!outcome && c->path.flags & PATH_MASQUERADE)
		outcome = nat_out(skb);
	if (outcome >= NEXT_DROP)
		return refuse_flow(skb, c, outcome);
	return path_forward(skb, c, &c->path, c->path.action, HOOK_FROM_PROXY);
}

/* Translates a reply of a backend that the proxy sends to the client of a Service, as the backend would send it. */
APART enum next from_proxy_answer(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || l4_parse(skb, &c->pkt) || !proto_has_ports(c->pkt.proto) || !service_answer(c, skb->len))
		return NEXT_CONTINUE;
	return addr_equal(&c->to.dst, &c->pkt.dst) ? NEXT_FORWARD : service_path(skb, c);
}

/* Handles a packet of the proxy. Returns a verdict. Cost: per packet of flows with L7 rules. */
INLINE int proxy_receive(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct cached_path *p;
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	if (packet_parse(skb, &c->pkt, HOOK_FROM_PROXY) != PARSED_IP)
		return TC_ACT_SHOT; /* neighbour discovery of the proxy's network namespace */
	p = path_find(&c->pkt, false);
	if (p) {
		c->path = p->path;
		c->snat = p->snat;
	} else if ((outcome = from_proxy_decide(skb))) {
		return outcome == DROP_NO_ROUTE || outcome == DROP_BLACKHOLE ? icmp_refuse(skb, outcome, 0)
									       : drop(skb, c, outcome);
	} else {
		path_via_neighbour(&c->path);
	}
	c->pkt.slot = c->path.src_slot ? c->path.src_slot : c->path.dst_slot;
	if (config.services && c->path.flags & PATH_ANSWERS) {
		outcome = from_proxy_answer(skb);
		if (outcome != NEXT_CONTINUE)
			return service_send(skb, outcome);
	}
	return from_proxy_forward(skb);
}

#endif
