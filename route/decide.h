/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forwarding decisions: one for each pair of addresses. It is made again when an epoch has changed, and after a second
 * because neighbours may have changed. Slow path.
 */
#ifndef MYELIN_DECIDE_H
#define MYELIN_DECIDE_H

#include "path.h"
#include "../policy/policy.h"

INLINE bool addr_is_multicast(const struct addr *a)
{
	if (addr_is4(a))
		return a->b[12] >= 224; /* class D, class E and limited broadcast */
	return a->b[0] == 0xff;
}

/* Whether no router forwards to the address: RFC 1122 3.2.1.3, RFC 4291 2.5.2, 2.5.3, 2.5.6. */
INLINE bool addr_is_martian(const struct addr *a)
{
	if (addr_is4(a))
		return a->b[12] == 0 || a->b[12] == 127;
	if (a->d[0] == 0 && a->w[2] == 0)
		return true; /* ::, ::1 and IPv4-compatible addresses */
	return a->b[0] == 0xfe && (a->b[1] & 0xc0) == 0x80;
}

/*
 * Checks that the source addresses are those of the pod that the link belongs to. Returns NEXT_FORWARD or a drop
 * reason.
 */
INLINE enum next source_verify(struct __sk_buff *skb, struct packet *pkt, struct path *p)
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
	return NEXT_FORWARD;
}

/* Fills in the decision for a destination on this node: a pod, or the host. */
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

/* Whether a packet from the world to a pod needs a conntrack entry, so that the pod's replies are not masqueraded. */
INLINE bool decide_world_tracked(const struct packet *pkt)
{
	struct prefix *prefix;

	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6))
		return false;
	prefix = prefix_find(&pkt->src);
	return !prefix || !(prefix->flags & PREFIX_CLUSTER);
}

/*
 * Whether the source of the CPU's packet, which came through the tunnel, is valid: the sender must be a node (c->outer,
 * any of its addresses), and the source an address of that node or of its pods, or outside the cluster, because nodes
 * forward packets of Services' clients. Slow path.
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
 * Whether the source of the CPU's packet, which came from another wire than the tunnel, is valid; pod: the destination
 * is a pod. With a tunnel, packets of other nodes' pods come through it, and so do packets of nodes to pods. Slow path.
 */
INLINE bool decide_plain_source(const struct cpu *c, bool pod)
{
	struct prefix *source = prefix_find(&c->pkt.src);

	return !source || addr_is_zero(&source->via) || (source->flags & PREFIX_NODE && !pod);
}

/*
 * Whether the CPU's packet came encrypted from the node that its source, which is in that prefix, belongs to: WireGuard
 * or from_ipsec has verified that. While a node rotates its key of WireGuard, there are two devices. Slow path.
 */
INLINE bool decide_decrypted(const struct __sk_buff *skb, const struct prefix *source)
{
	__u32 ifindex = skb->ifindex;
	struct wire *w;

	if (!source->encryption || config.ipsec || source->encryption == ifindex)
		return source->encryption == ifindex;
	w = bpf_map_lookup_elem(&wires, &ifindex);
	return w && w->flags & WIRE_WIREGUARD;
}

/* Whether the CPU's packet came encrypted from the node that its source belongs to. Slow path. */
INLINE bool decide_encrypted_source(const struct __sk_buff *skb, const struct cpu *c)
{
	struct prefix *source = prefix_find(&c->pkt.src);

	return source && decide_decrypted(skb, source);
}

/*
 * Whether the CPU's packet came in plain text, and its source encrypts what it sends to this node; e: the destination.
 * Of what nodes send, that is what is for pods. Slow path.
 */
INLINE bool decide_came_plain(const struct __sk_buff *skb, const struct cpu *c, const struct endpoint *e)
{
	struct prefix *source = prefix_find(&c->pkt.src);

	if (!source || decide_decrypted(skb, source) || !(source->encryption || source->flags & PREFIX_STRICT))
		return false;
	return !(source->flags & PREFIX_NODE) || (e && !(e->flags & ENDPOINT_HOST));
}

/* Whether the source of the CPU's packet is valid on the wire that it came from; e: the destination. Slow path. */
INLINE bool decide_source(const struct __sk_buff *skb, const struct cpu *c, const struct endpoint *e)
{
	if (!config.tunnel || (config.encryption && decide_encrypted_source(skb, c)))
		return true;
	return tunnel_device(skb) ? decide_tunnel_source(c) : decide_plain_source(c, e && !(e->flags & ENDPOINT_HOST));
}

/* Returns the flags (enum path_flag) for flows between the endpoints with these slots. */
INLINE __u8 decide_tracking(__u16 src, __u16 dst)
{
	if (config.policy && (policy_selects(src) || policy_selects(dst)))
		return PATH_TRACKED | PATH_POLICY |
		       (config.l7 && (policy_l7(src) || policy_l7(dst)) ? PATH_L7 : 0);
	return config.flow_always ? PATH_TRACKED : 0;
}

/* Decides c->path for a packet to one of the node's pods. */
INLINE void decide_wire_pod(struct cpu *c, const struct endpoint *e)
{
	__builtin_memset(&c->path, 0, sizeof(c->path));
	decide_pod(&c->path, e);
	c->pkt.slot = e->slot;
	c->path.expires = clock_now() + config.hz;
	c->path.epoch = epoch_sum(0, e->slot);
	if (config.bandwidth)
		c->path.limits = bandwidth_limits(SLOT_NONE, e->slot);
	if (config.services && endpoint_uses_services(e->slot))
		c->path.flags |= PATH_ANSWERS;
	c->path.flags |= decide_tracking(0, e->slot);
}

/* Converts the result of bpf_fib_lookup to a drop reason; 0 if there is a route. */
INLINE enum next fib_outcome(long rc)
{
	switch (rc) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return NEXT_FORWARD;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return DROP_BLACKHOLE;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return DROP_TOO_BIG;
	default:
		return DROP_NO_ROUTE;
	}
}

/*
 * Looks up the kernel's route for the packet to dst, of its family. struct bpf_fib_lookup has different fields for IPv4
 * and IPv6. Slow path.
 */
INLINE long fib_lookup(struct __sk_buff *skb, const struct packet *pkt, const struct addr *dst,
		       struct bpf_fib_lookup *f)
{
	f->ifindex = pkt->ifindex & ~PATH_MARKS;
	f->l4_protocol = pkt->proto;
	f->tot_len = 1; /* requests the route's MTU in mtu_result, since kernel 5.12; unchanged by older kernels */
	if (pkt->family == 4) {
		f->family = AF_INET;
		f->ipv4_src = pkt->src.w[3];
		f->ipv4_dst = dst->w[3];
	} else {
		f->family = AF_INET6;
		__builtin_memcpy(f->ipv6_src, &pkt->src, 16);
		__builtin_memcpy(f->ipv6_dst, dst, 16);
	}
	return bpf_fib_lookup(skb, f, sizeof(*f), 0);
}

/* Decides c->path by the kernel's route to dst. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next decide_wire(struct __sk_buff *skb, struct cpu *c, const struct addr *dst)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct bpf_fib_lookup f = {};
	long rc = fib_lookup(skb, pkt, dst, &f);
	int outcome = fib_outcome(rc);
	struct wire *w;

	if (rc == BPF_FIB_LKUP_RET_NOT_FWDED || rc == BPF_FIB_LKUP_RET_FWD_DISABLED) {
		p->action = PATH_STACK; /* no route, or an address of the host that is not in endpoints yet */
		return NEXT_FORWARD;
	}
	if (outcome && outcome != DROP_TOO_BIG)
		return outcome;
	p->ifindex = f.ifindex;
	w = bpf_map_lookup_elem(&wires, &p->ifindex);
	if (!w) {
		p->action = PATH_STACK; /* not a wire: the kernel forwards the packet */
		return NEXT_FORWARD;
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
	return NEXT_FORWARD;
}

/* Legacy routing: sets PATH_MASQUERADE if a pod's packet must be masqueraded. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next decide_masquerade(struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &pkt->src);
	struct prefix *prefix;
	struct wire *w;

	p->flags = 0;
	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6) || !e || e->flags & ENDPOINT_HOST)
		return NEXT_FORWARD;
	prefix = prefix_find(&pkt->dst);
	w = bpf_map_lookup_elem(&wires, &pkt->ifindex);
	if (!w || (prefix && prefix->flags & PREFIX_CLUSTER))
		return NEXT_FORWARD;
	pkt->slot = e->slot;
	p->flags = PATH_MASQUERADE;
	c->snat = pkt->family == 4 ? w->addr4 : w->addr6;
	return addr_is_zero(&c->snat) ? DROP_NAT_NO_ADDRESS : NEXT_FORWARD;
}

/* Returns the MTU of the tunnel device, which bounds inner packets; 0 while the agent has not set it. */
INLINE __u16 tunnel_mtu(void)
{
	__u32 ifindex = config.tunnel_ifindex;
	struct wire *w = bpf_map_lookup_elem(&wires, &ifindex);

	return w ? w->mtu : 0;
}

/* Decides c->path for a prefix that is reached by the device that encrypts. Slow path. */
INLINE void decide_encrypted(struct cpu *c, const struct prefix *prefix)
{
	__u32 ifindex = prefix->encryption;
	struct wire *w = bpf_map_lookup_elem(&wires, &ifindex);

	c->path.action = PATH_ENCRYPT;
	c->path.ifindex = ifindex;
	if (!w)
		return;
	c->path.mtu = w->mtu;
	c->snat = c->pkt.family == 4 ? w->addr4 : w->addr6;
}

/*
 * Decides c->path for a destination that is not on this node; prefix: the destination's, NULL if it is in none. Returns
 * NEXT_FORWARD or a drop reason.
 */
INLINE enum next decide_remote(struct __sk_buff *skb, struct cpu *c, const struct prefix *prefix)
{
	const struct addr *dst = &c->pkt.dst;
	struct path *p = &c->path;

	if (config.encryption && prefix && c->pkt.ifindex & PATH_PLAIN && !addr_is_zero(&prefix->via))
		dst = &prefix->via; /* the kernel's route to pods leads into the device that encrypts */
	if (config.encryption && prefix && !(c->pkt.ifindex & PATH_PLAIN)) {
		if (prefix->encryption) {
			decide_encrypted(c, prefix);
			return NEXT_FORWARD;
		}
		if (config.strict_egress && prefix->flags & PREFIX_STRICT)
			return DROP_NOT_ENCRYPTED;
	}
	if (!config.tunnel || !prefix || !(prefix->flags & PREFIX_TUNNEL))
		return decide_wire(skb, c, dst);
	p->action = PATH_TUNNEL;
	p->via = prefix->via;
	p->mtu = tunnel_mtu();
	return NEXT_FORWARD;
}

/*
 * Legacy routing: sets c->path for a packet to an encrypted node, and returns whether it is one. The kernel has a route
 * into the device that encrypts for packets to other nodes' pods, but none for those to the nodes, where encrypted
 * packets go.
 */
INLINE bool decide_encrypted_node(struct cpu *c)
{
	const struct prefix *prefix = prefix_find(&c->pkt.dst);

	if (!prefix || !prefix->encryption || !(prefix->flags & PREFIX_NODE))
		return false;
	decide_encrypted(c, prefix);
	return true;
}

/* Decides c->path for any destination, and whether the packet is masqueraded. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next decide_destination(struct __sk_buff *skb, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	struct path *p = &c->path;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &pkt->dst);
	struct prefix *prefix;
	enum next outcome;

	if (e) {
		decide_pod(p, e);
		return NEXT_FORWARD;
	}
	if (config.legacy_routing) {
		if (!config.encryption || !decide_encrypted_node(c))
			p->action = PATH_STACK;
		return NEXT_FORWARD;
	}
	prefix = prefix_find(&pkt->dst);
	outcome = decide_remote(skb, c, prefix);
	if (outcome || p->action == PATH_STACK || p->action == PATH_TUNNEL ||
	    (prefix && prefix->flags & PREFIX_CLUSTER))
		return outcome;
	if (!(pkt->family == 4 ? config.masquerade4 : config.masquerade6))
		return NEXT_FORWARD;
	p->flags |= PATH_MASQUERADE;
	return addr_is_zero(&c->snat) ? DROP_NAT_NO_ADDRESS : NEXT_FORWARD;
}

/* Checks a packet from a pod: its own source address, a routable destination. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next decide_addresses(struct __sk_buff *skb, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	enum next outcome;

	__builtin_memset(&c->path, 0, sizeof(c->path));
	__builtin_memset(&c->snat, 0, sizeof(c->snat));
	outcome = source_verify(skb, pkt, &c->path);
	/* Before DROP_SPOOFED_ADDRESS: IPv6 stacks send multicast group reports from their link-local addresses. */
	if ((!outcome || outcome == DROP_SPOOFED_ADDRESS) && addr_is_multicast(&pkt->dst))
		return DROP_MULTICAST;
	if (outcome)
		return outcome;
	return addr_is_martian(&pkt->dst) ? DROP_MARTIAN : NEXT_FORWARD;
}

/* Decides c->path for a packet with valid addresses, ignoring Services. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next decide_route(struct __sk_buff *skb, struct cpu *c)
{
	struct path *p = &c->path;
	enum next outcome;

	p->expires = clock_now() + config.hz;
	outcome = decide_destination(skb, c);
	p->epoch = epoch_sum(p->src_slot, p->dst_slot);
	path_limit_source(p, p->src_slot);
	p->flags |= decide_tracking(p->src_slot, p->dst_slot);
	return outcome;
}

#endif
