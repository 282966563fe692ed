/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Deciding a path: once for a pair of addresses, and again when an epoch moved or the neighbour's word is a second old. Slow path. */
#ifndef MYELIN_DECIDE_H
#define MYELIN_DECIDE_H

#include "path.h"
#include "../policy/policy.h"

INLINE bool addr_is_multicast(const struct addr *a)
{
	if (addr_is4(a))
		return a->b[12] >= 224; /* class D, class E and the limited broadcast */
	return a->b[0] == 0xff;
}

/* Addresses that no router forwards to: RFC 1122 3.2.1.3, RFC 4291 2.5.2, 2.5.3, 2.5.6. */
INLINE bool addr_is_martian(const struct addr *a)
{
	if (addr_is4(a))
		return a->b[12] == 0 || a->b[12] == 127;
	if (a->d[0] == 0 && a->w[2] == 0)
		return true; /* ::, ::1 and the IPv4-compatible addresses */
	return a->b[0] == 0xfe && (a->b[1] & 0xc0) == 0x80;
}

/* The sender must be who the link belongs to. */
INLINE int source_verify(struct __sk_buff *skb, struct packet *pkt, struct path *p)
{
	struct pod_link *l = bpf_map_lookup_elem(&pod_links, &pkt->ifindex);
	void *data = (void *)(long)skb->data;

	if (!l)
		return DROP_NO_ENDPOINT;
	pkt->slot = l->endpoint.slot;
	p->src_slot = l->endpoint.slot;
	p->in_ifindex = pkt->ifindex;
	p->in_mac = l->endpoint.pod_mac;
	if (data + ETH_HLEN > (void *)(long)skb->data_end)
		return DROP_TRUNCATED;
	if (!mac_equal(&p->in_mac, ((struct ethhdr *)data)->h_source))
		return DROP_SPOOFED_MAC;
	if (!addr_equal(&pkt->src, pkt->family == 4 ? &l->addr4 : &l->addr6))
		return DROP_SPOOFED_ADDRESS;
	return 0;
}

INLINE void decide_pod(struct path *p, const struct endpoint *e)
{
	p->dst_slot = e->slot;
	p->action = PATH_STACK;
	if (e->flags & ENDPOINT_HOST)
		return;
	if (!config.legacy_routing)
		p->action = PATH_POD;
	p->ifindex = e->ifindex;
	p->dmac = e->pod_mac;
	p->smac = e->link_mac;
}

/* Whether what the world sends to a pod needs a row, so that the pod's answers are not masqueraded. */
INLINE bool decide_world_tracked(const struct packet *pkt)
{
	struct prefix *prefix;

	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6))
		return false;
	prefix = prefix_find(&pkt->src);
	return !prefix || !(prefix->flags & PREFIX_CLUSTER);
}

/*
 * Whether the tunnel may bring the CPU's packet: from a node, and with the source of a pod or address of that node, or of the world, whose packets nodes
 * pass on for Services. A node may send from any of its addresses. Slow path.
 */
INLINE bool decide_tunnel_source(const struct cpu *c)
{
	struct prefix *node = prefix_find(&c->outer), *source;

	if (!node || !(node->flags & PREFIX_NODE))
		return false;
	source = prefix_find(&c->pkt.src);
	return !source || addr_is_zero(&source->via) || addr_equal(&source->via, &node->via);
}

/*
 * Whether the wire, which is not the tunnel, may bring the CPU's packet, to a pod (pod) or not: where there is a tunnel, other nodes' pods send by it, and so
 * do nodes to pods. Slow path.
 */
INLINE bool decide_plain_source(const struct cpu *c, bool pod)
{
	struct prefix *source = prefix_find(&c->pkt.src);

	return !source || addr_is_zero(&source->via) || (source->flags & PREFIX_NODE && !pod);
}

/* Whether the wire may bring the CPU's packet by what is known of its source. Slow path. */
INLINE bool decide_source(const struct __sk_buff *skb, const struct cpu *c, const struct endpoint *e)
{
	if (!config.tunnel)
		return true;
	return tunnel_device(skb) ? decide_tunnel_source(c) : decide_plain_source(c, e && !(e->flags & ENDPOINT_HOST));
}

/* What flows between the endpoints need, in flags of a path. */
INLINE __u8 decide_tracking(__u16 src, __u16 dst)
{
	if (config.policy && (policy_selects(src) || policy_selects(dst)))
		return PATH_TRACKED | PATH_POLICY;
	return config.flow_always ? PATH_TRACKED : 0;
}

/* Into one of the node's pods: the CPU's path. */
INLINE void decide_wire_pod(struct cpu *c, const struct endpoint *e)
{
	__builtin_memset(&c->path, 0, sizeof(c->path));
	decide_pod(&c->path, e);
	c->pkt.slot = e->slot;
	c->path.expires = clock_now() + config.hz;
	c->path.epoch = epoch_sum(0, e->slot);
	if (config.services && endpoint_uses_services(e->slot))
		c->path.flags |= PATH_ANSWERS;
	c->path.flags |= decide_tracking(0, e->slot);
}

/* What the kernel's routes say, in the words of an outcome; 0 if there is a way. */
INLINE int fib_outcome(long rc)
{
	switch (rc) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return 0;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return DROP_BLACKHOLE;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return DROP_TOO_BIG;
	default:
		return DROP_NO_ROUTE;
	}
}

/* The kernel's fib takes IPv4 and IPv6 addresses in different places: this is one of the few spots where the families differ. */
INLINE long fib_lookup(struct __sk_buff *skb, const struct packet *pkt, struct bpf_fib_lookup *f)
{
	f->ifindex = pkt->ifindex & ~PATH_REWRITTEN;
	f->l4_protocol = pkt->proto;
	f->tot_len = 1; /* asks for the route's MTU, since 5.12; before, it comes back as it went in */
	if (pkt->family == 4) {
		f->family = AF_INET;
		f->ipv4_src = pkt->src.w[3];
		f->ipv4_dst = pkt->dst.w[3];
	} else {
		f->family = AF_INET6;
		__builtin_memcpy(f->ipv6_src, &pkt->src, 16);
		__builtin_memcpy(f->ipv6_dst, &pkt->dst, 16);
	}
	return bpf_fib_lookup(skb, f, sizeof(*f), 0);
}

/* By the kernel's routes, into the CPU's path. Returns 0 or a drop reason. */
INLINE int decide_wire(struct __sk_buff *skb, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct bpf_fib_lookup f = {};
	long rc = fib_lookup(skb, pkt, &f);
	int outcome = fib_outcome(rc);
	struct wire *w;

	if (rc == BPF_FIB_LKUP_RET_NOT_FWDED || rc == BPF_FIB_LKUP_RET_FWD_DISABLED) {
		p->action = PATH_STACK; /* no route, or an address of the host's that the agent does not know yet: the kernel answers */
		return 0;
	}
	if (outcome && outcome != DROP_TOO_BIG)
		return outcome;
	p->ifindex = f.ifindex;
	w = bpf_map_lookup_elem(&wires, &p->ifindex);
	if (!w) {
		p->action = PATH_STACK; /* a device that is not ours: the kernel knows what to do */
		return 0;
	}
	c->snat = pkt->family == 4 ? w->addr4 : w->addr6;
	p->mtu = f.mtu_result > 1 ? f.mtu_result : w->mtu;
	p->action = rc == BPF_FIB_LKUP_RET_NO_NEIGH && !(w->flags & WIRE_L3) ? PATH_RESOLVE : PATH_WIRE;
	if (!(w->flags & WIRE_L3)) {
		__builtin_memcpy(&p->dmac, f.dmac, ETH_ALEN);
		__builtin_memcpy(&p->smac, f.smac, ETH_ALEN);
	}
	if (f.family == AF_INET)
		addr_map4(&p->via, f.ipv4_dst);
	else
		__builtin_memcpy(&p->via, f.ipv6_dst, 16);
	return 0;
}

/* Legacy routing: whether what leaves by this wire is a pod's and must be masqueraded. Returns 0 or a drop reason. */
INLINE int decide_masquerade(struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &pkt->src);
	struct prefix *prefix;
	struct wire *w;

	p->flags = 0;
	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6) || !e || e->flags & ENDPOINT_HOST)
		return 0;
	prefix = prefix_find(&pkt->dst);
	w = bpf_map_lookup_elem(&wires, &pkt->ifindex);
	if (!w || (prefix && prefix->flags & PREFIX_CLUSTER))
		return 0;
	pkt->slot = e->slot;
	p->flags = PATH_MASQUERADE;
	c->snat = pkt->family == 4 ? w->addr4 : w->addr6;
	return addr_is_zero(&c->snat) ? DROP_NAT_NO_ADDRESS : 0;
}

/* Of a packet inside: that of the tunnel's device, 0 while the agent has not told. */
INLINE __u16 tunnel_mtu(void)
{
	__u32 ifindex = config.tunnel_ifindex;
	struct wire *w = bpf_map_lookup_elem(&wires, &ifindex);

	return w ? w->mtu : 0;
}

/* The CPU's path to a destination on another node or outside, which the prefix says (NULL: unknown). Returns 0 or a drop reason. */
INLINE int decide_remote(struct __sk_buff *skb, struct cpu *c, const struct prefix *prefix)
{
	struct path *p = &c->path;

	if (!config.tunnel || !prefix || !(prefix->flags & PREFIX_TUNNEL))
		return decide_wire(skb, c);
	p->action = PATH_TUNNEL;
	p->via = prefix->via;
	p->mtu = tunnel_mtu();
	return 0;
}

/* Where the packet leaves this node, and whether it is masqueraded. Returns 0 or a drop reason. */
INLINE int decide_destination(struct __sk_buff *skb, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &pkt->dst);
	struct prefix *prefix;
	int outcome;

	if (e) {
		decide_pod(p, e);
		return 0;
	}
	if (config.legacy_routing) {
		p->action = PATH_STACK;
		return 0;
	}
	prefix = prefix_find(&pkt->dst);
	outcome = decide_remote(skb, c, prefix);
	if (outcome || p->action == PATH_STACK || p->action == PATH_TUNNEL || (prefix && prefix->flags & PREFIX_CLUSTER))
		return outcome;
	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6))
		return 0;
	p->flags |= PATH_MASQUERADE;
	return addr_is_zero(&c->snat) ? DROP_NAT_NO_ADDRESS : 0;
}

/* Whether the pod may send the packet at all: from its own address, to one that can be routed. Returns 0 or a drop reason. */
INLINE int decide_addresses(struct __sk_buff *skb, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	int outcome;

	__builtin_memset(&c->path, 0, sizeof(c->path));
	__builtin_memset(&c->snat, 0, sizeof(c->snat));
	outcome = source_verify(skb, pkt, &c->path);
	/* Also from the link's own address: every IPv6 stack reports its groups from there. */
	if ((!outcome || outcome == DROP_SPOOFED_ADDRESS) && addr_is_multicast(&pkt->dst))
		return DROP_MULTICAST;
	if (outcome)
		return outcome;
	return addr_is_martian(&pkt->dst) ? DROP_MARTIAN : 0;
}

/* The route of a packet with valid addresses, into the CPU's path, as if there were no Services. Returns 0 or a drop reason. */
INLINE int decide_route(struct __sk_buff *skb, struct cpu *c)
{
	struct path *p = &c->path;
	int outcome;

	p->expires = clock_now() + config.hz;
	outcome = decide_destination(skb, c);
	p->epoch = epoch_sum(p->src_slot, p->dst_slot);
	p->flags |= decide_tracking(p->src_slot, p->dst_slot);
	return outcome;
}

#endif
