/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that follow a decision: checks, rewriting, and the way out. */
#ifndef MYELIN_PATH_H
#define MYELIN_PATH_H

#include "../bpf/icmp/icmp.h"
#include "../endpoint/netkit.h"
#include "../l7/dns/dns.h"
#include "cache.h"
#include "neighbour/neighbour.h"

/* Whether these bytes are the source MAC that the decision was made for. Cost: per packet. */
INLINE bool path_mac_is(const struct path *p, const __u8 *mac)
{
	/* A plain pointer, so that the compiler loads aligned words. */
	const __u8 *want = p->in_mac.b;

	return *(const __u32 *)want == *(const __u32 *)mac && *(const __u16 *)(want + 4) == *(const __u16 *)(mac + 4);
}

/* Whether the packet has the source MAC that the decision was made for. Any other one is spoofed. Cost: per packet. */
INLINE bool path_mac_matches(const struct __sk_buff *skb, const struct path *p)
{
	const __u8 *data = (void *)(long)skb->data;

	return data + ETH_HLEN <= (const __u8 *)(long)skb->data_end && path_mac_is(p, data + ETH_ALEN);
}

INLINE int drop_spoofed(struct __sk_buff *skb, struct cpu *c, const struct path *p)
{
	c->pkt.slot = p->src_slot;
	return drop(skb, c, DROP_SPOOFED_MAC);
}

/* Decrements the TTL and writes the Ethernet header. Cost: per packet. */
INLINE bool path_rewrite(struct __sk_buff *skb, const struct packet *pkt, const struct path *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const __u32 *macs = (const __u32 *)&p->dmac;
	__u32 *eth = data;

	if (pkt->family == 4) {
		struct iphdr *ip = data + L3;
		__u32 sum;

		if ((void *)(ip + 1) > end)
			return false;
		sum = (__u32)ip->check + bpf_htons(0x0100);
		ip->check = (__u16)(sum + (sum >> 16));
		ip->ttl--;
	} else {
		struct ipv6hdr *ip = data + L3;

		if ((void *)(ip + 1) > end)
			return false;
		ip->hop_limit--;
		/* The hop limit is in no checksum, except CHECKSUM_COMPLETE's sum of the whole packet. */
		bpf_csum_update(skb, bpf_htons(0xfffe));
	}
	eth[0] = macs[0];
	eth[1] = macs[1];
	eth[2] = macs[2];
	return true;
}

/*
 * Marks an skb that the datapath forwards to a wire, for to_wire: its source may be the node's address (masquerading,
 * Services), but it is not the node's own. skb->cb survives bpf_redirect and bpf_redirect_neigh.
 */
enum wire_mark {
	WIRE_FORWARDED = 0x6d796677,
};

INLINE void wire_mark_set(struct __sk_buff *skb)
{
	if (config.wire_mark)
		skb->cb[0] = WIRE_FORWARDED;
}

/* Sends the packet out of c->path's device; the kernel resolves the neighbour. Cost: first packet of a decision. */
APART int path_resolve(struct __sk_buff *skb)
{
	struct bpf_redir_neigh nh = {};
	struct cpu *c = cpu_this();
	struct path *p;

	if (!c)
		return TC_ACT_SHOT;
	p = &c->path;
	nh.nh_family = addr_is4(&p->via) ? AF_INET : AF_INET6;
	__builtin_memcpy(nh.ipv6_nh, p->via.w, sizeof(nh.ipv6_nh));
	if (nh.nh_family == AF_INET)
		nh.ipv4_nh = p->via.w[3];
	count(skb, c, FORWARD_RESOLVE);
	trace(skb, c, FORWARD_RESOLVE);
	wire_mark_set(skb);
	return bpf_redirect_neigh(p->ifindex, &nh, sizeof(nh), 0);
}

/*
 * Sends the packet to the proxy. A DNS message that need not pass through it is handed back by the TUN device, as the
 * proxy would send it. Returns a verdict. Cost: per packet of flows with L7 rules.
 */
INLINE int path_send_proxy(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u32 hook)
{
	__u32 outcome = FORWARD_PROXY, ifindex = p->ifindex;
	bool datagram = path_is_l3(p);

	if (config.dns_cache && datagram)
		outcome = dns_pass(skb, (__u32)p->src_slot << 16 | p->dst_slot);
	count(skb, c, outcome);
	trace(skb, c, outcome);
	if (!datagram)
		return netkit_enter(skb, ifindex, hook, false);
	return bpf_redirect(ifindex, outcome == FORWARD_PROXY ? 0 : BPF_F_INGRESS);
}

/*
 * Counts the packet, and sends it into a pod, out of a wire, or through the tunnel, whose key is set, as action says.
 * Returns a verdict. Cost: per packet.
 */
INLINE int path_leave(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	if (action == PATH_POD) {
		count_at(c, hook, FORWARD_POD, skb->len);
		return netkit_enter(skb, p->ifindex, hook, config.bandwidth && p->limits & LIMIT_DESTINATION);
	}
	if (action == PATH_TUNNEL) {
		count_at(c, hook, FORWARD_TUNNEL, skb->len);
		return bpf_redirect(config.tunnel_ifindex, 0);
	}
	count_at(c, hook, FORWARD_WIRE, skb->len);
	wire_mark_set(skb);
	return bpf_redirect(p->ifindex, 0);
}

/*
 * Sends the packet to its next hop. p must be c->path if the action is PATH_RESOLVE, which is never cached. hook is
 * c->pkt.hook, as a constant where possible, which makes counting cheaper. Returns a verdict. Cost: per packet.
 */
INLINE int path_send(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	switch (action) {
	case PATH_POD:
		trace(skb, c, FORWARD_POD);
		return path_leave(skb, c, p, PATH_POD, hook);
	case PATH_TUNNEL:
		if (!tunnel_key_set(skb, &p->via))
			return drop(skb, c, DROP_REWRITE);
		trace(skb, c, FORWARD_TUNNEL);
		return path_leave(skb, c, p, PATH_TUNNEL, hook);
	case PATH_ENCRYPT:
		count(skb, c, FORWARD_ENCRYPT);
		trace(skb, c, FORWARD_ENCRYPT);
		wire_mark_set(skb);
		return bpf_redirect(p->ifindex, 0);
	case PATH_RESOLVE:
		return path_resolve(skb);
	case PATH_PROXY:
		return path_send_proxy(skb, c, p, hook);
	default:
		trace(skb, c, FORWARD_WIRE);
		return path_leave(skb, c, p, PATH_WIRE, hook);
	}
}

/*
 * Checks TTL and MTU; of a pod's packet to the host's stack, that it hides no neighbour discovery. Returns 0, or the
 * verdict on a packet that was refused. Cost: per packet.
 */
INLINE int path_refuse(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action)
{
	if (action == PATH_STACK) {
		if (c->pkt.hook == HOOK_FROM_POD && unlikely(neighbour_may_hide(&c->pkt)))
			return neighbour_refuse_hidden(skb);
		return 0;
	}
	if (unlikely(c->pkt.ttl <= 1))
		return icmp_refuse(skb, DROP_TTL, 0);
	if (unlikely(p->mtu && skb->len - ETH_HLEN > p->mtu) && l4_packet_size(skb, &c->pkt) > p->mtu)
		return icmp_refuse(skb, DROP_TOO_BIG, p->mtu);
	return 0;
}

/* Whether the packet's source has a limit that it takes bandwidth of, or a priority. Cost: per packet. */
INLINE bool path_paced(const struct path *p, __u8 action)
{
	return config.bandwidth && unlikely(p->limits & LIMIT_SOURCE) && action != PATH_POD && action != PATH_PROXY;
}

/* Forwards a packet that has passed path_refuse. Returns a verdict. Cost: per packet. */
INLINE int path_forward(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	int verdict;

	if (path_paced(p, action) && (verdict = bandwidth_pace(skb, p->limited)))
		return verdict;
	if (action == PATH_STACK)
		return pass(skb, c);
	if (unlikely(!path_rewrite(skb, &c->pkt, p)))
		return drop(skb, c, DROP_REWRITE);
	return path_send(skb, c, p, action, hook);
}

/*
 * Checks and forwards the packet. action is p->action, or PATH_RESOLVE for a packet that takes the kernel's neighbour
 * table. Returns a verdict. Cost: per packet.
 */
INLINE int path_follow(struct __sk_buff *skb, struct cpu *c, const struct path *p, __u8 action, __u32 hook)
{
	int verdict = path_refuse(skb, c, p, action);

	return verdict ? verdict : path_forward(skb, c, p, action, hook);
}

#endif
