/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewrites packets of Services and finds the path of the result. */
#ifndef MYELIN_SERVICE_SEND_H
#define MYELIN_SERVICE_SEND_H

#include "cross.h"
#include "dsr.h"
#include "encap.h"
#include "../route/decide.h"

/* Decides c->path for the rewritten packet, for any sender. Returns NEXT_FORWARD or a drop reason. Slow path. */
APART enum next decide_rewritten(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	struct path *p;
	enum next outcome;

	if (!c)
		return DROP_NO_ROUTE;
	p = &c->path;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
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

/* What the lookup of the rewritten packet's path overwrites in c->pkt. */
struct original {
	struct addr src;
	struct addr dst;
	__u8 family;
};

/* Prepares c->pkt for the lookup of the rewritten packet's path; rewrite_lookup_end restores it. */
INLINE void rewrite_lookup_begin(struct cpu *c, struct original *was)
{
	was->src = c->pkt.src;
	was->dst = c->pkt.dst;
	was->family = c->pkt.family;
	if (cross_family(c)) {
		__builtin_memset(&c->pkt.src, 0, sizeof(c->pkt.src)); /* no address: routes don't depend on it */
		c->pkt.family = addr_is4(&c->to.dst) ? 4 : 6;
	}
	c->pkt.dst = c->to.encap ? c->to.via : c->to.dst;
	c->pkt.ifindex |= PATH_REWRITTEN;
}

INLINE void rewrite_lookup_end(struct cpu *c, const struct original *was)
{
	c->pkt.src = was->src;
	c->pkt.dst = was->dst;
	c->pkt.family = was->family;
	c->pkt.ifindex &= ~PATH_REWRITTEN;
}

/* Finds the path of the rewritten packet and sets c->path. Returns NEXT_FORWARD or a drop reason. Cost: per packet. */
INLINE enum next service_path(struct __sk_buff *skb, struct cpu *c)
{
	struct original was;
	struct cached_path *p;
	enum next outcome = NEXT_FORWARD;

	rewrite_lookup_begin(c, &was);
	p = path_find(&c->pkt, true);
	if (likely(p)) {
		c->path = p->path;
		c->snat = p->snat;
	} else {
		outcome = decide_rewritten(skb);
		path_via_neighbour(&c->path);
	}
	rewrite_lookup_end(c, &was);
	return outcome;
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
