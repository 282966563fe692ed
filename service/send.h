/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewrites packets of Services and finds the path of the result. */
#ifndef MYELIN_SERVICE_SEND_H
#define MYELIN_SERVICE_SEND_H

#include "cross.h"
#include "dsr.h"
#include "encap.h"
#include "../route/decide.h"

/* Decides c->path for a packet to c->pkt.dst from any source. Returns NEXT_FORWARD or a drop reason. Slow path. */
INLINE enum next decide_any_source(struct __sk_buff *skb, struct cpu *c)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	struct path *p = &c->path;
	enum next outcome;

	if (e) {
		decide_wire_pod(c, e);
		path_store(c, true);
		return NEXT_FORWARD;
	}
	__builtin_memset(p, 0, sizeof(*p));
	p->expires = clock_now() + config.hz;
	p->epoch = epoch_sum(0, 0);
	outcome = decide_remote(skb, c, prefix_find(&c->pkt.dst));
	if (outcome)
		return outcome;
	if (p->action == PATH_TUNNEL)
		gateway_addr(&c->snat, c->pkt.family == 6);
	if (p->action != PATH_RESOLVE)
		path_store(c, true);
	return NEXT_FORWARD;
}

/*
 * Returns what pkt->ifindex is for the rewritten packet. Packets of DSR keep the client's address, which the backend's
 * node takes from no peer of WireGuard.
 */
INLINE __u32 rewritten_ifindex(const struct cpu *c)
{
	const struct packet *pkt = &c->pkt;
	__u32 ifindex = pkt->ifindex | PATH_REWRITTEN;

	if (config.encryption && config.direct && (pkt->hook == HOOK_FROM_WIRE || pkt->hook == HOOK_FROM_WIRE_XDP) &&
	    addr_equal(&c->to.src, &pkt->src))
		ifindex |= PATH_PLAIN;
	return ifindex;
}

/*
 * Decides c->path for the rewritten packet. Other senders share the decision, so it must not depend on the source: the
 * kernel, for example, finds no route for packets from link-local IPv6 addresses. Returns NEXT_FORWARD or a drop
 * reason. Slow path.
 */
APART enum next decide_rewritten(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct addr src, dst;
	enum next outcome;
	__u32 ifindex;
	__u8 family;

	if (!c)
		return DROP_NO_ROUTE;
	src = c->pkt.src;
	dst = c->pkt.dst;
	family = c->pkt.family;
	ifindex = c->pkt.ifindex;
	c->pkt.ifindex = rewritten_ifindex(c);
	__builtin_memset(&c->pkt.src, 0, sizeof(c->pkt.src));
	c->pkt.dst = c->to.encap ? c->to.via : c->to.dst;
	c->pkt.family = addr_is4(&c->to.dst) ? 4 : 6;
	outcome = decide_any_source(skb, c);
	c->pkt.src = src;
	c->pkt.dst = dst;
	c->pkt.family = family;
	c->pkt.ifindex = ifindex;
	path_via_neighbour(&c->path);
	return outcome;
}

/* Finds the path of the rewritten packet and sets c->path. Returns NEXT_FORWARD or a drop reason. Cost: per packet. */
INLINE enum next service_path(struct __sk_buff *skb, struct cpu *c)
{
	const struct addr *dst = c->to.encap ? &c->to.via : &c->to.dst;
	struct cached_path *p = path_find_to(dst, rewritten_ifindex(c));

	if (unlikely(!p))
		return decide_rewritten(skb);
	c->path = p->path;
	c->snat = p->snat;
	return NEXT_FORWARD;
}

/* Returns the number of bytes by which rewriting lengthens the packet. */
INLINE __u32 rewrite_grows(const struct cpu *c)
{
	__u32 n = c->to.option ? dsr_size(&c->pkt) : 0;

	if (c->to.encap)
		n += encap_size(&c->pkt);
	if (unlikely(cross_family(c)) && c->pkt.family == 4)
		n += CROSS_GROWS;
	return n;
}

/* Writes the addresses and ports in c->to to the packet. Cost: per packet. */
INLINE bool rewrite_write(struct __sk_buff *skb, struct cpu *c)
{
	if (unlikely(cross_family(c)))
		return cross_write(skb);
	if ((c->to.dport != c->pkt.dport || !addr_equal(&c->to.dst, &c->pkt.dst)) &&
	    !nat_write(skb, &c->pkt, false, &c->to.dst, c->to.dport))
		return false;
	if ((c->to.sport != c->pkt.sport || !addr_equal(&c->to.src, &c->pkt.src)) &&
	    !nat_write(skb, &c->pkt, true, &c->to.src, c->to.sport))
		return false;
	return (!c->to.option || dsr_push(skb)) && (!c->to.encap || encap_push(skb));
}

#endif
