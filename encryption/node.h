/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Traffic between nodes themselves, which WireGuard encrypts with node encryption. The kernel routes it to a wire,
 * where it is redirected. There is no route into WireGuard's device, because WireGuard's own packets have the same
 * destination.
 */
#ifndef MYELIN_NODE_H
#define MYELIN_NODE_H

#include "../route/decide.h"

#define TCP_CHECKSUM 16 /* offset of the checksum in a TCP header */

/* The MSS option (RFC 9293 3.2), where it is the first one, as in SYNs of common stacks. */
struct tcp_mss {
	__be16 kind; /* and length */
	__be16 size; /* bytes of a segment's data */
};

/* Whether the address is of a node whose own traffic is encrypted: this node, or another one. */
INLINE struct prefix *node_prefix(const struct addr *a)
{
	struct prefix *p = prefix_find(a);

	return p && p->flags & PREFIX_NODE_ENCRYPTS ? p : NULL;
}

/*
 * Whether the CPU's packet travels in plain text in any case: WireGuard's own by the port of this node's socket, which
 * no other socket has, and neighbour discovery, which no router forwards. The second port is WireGuard's only while a
 * key is rotated, so that both ports must be that.
 */
INLINE bool node_plain(struct __sk_buff *skb, const struct packet *pkt, bool sends)
{
	__be16 port, first = bpf_htons(config.wireguard_port), second = bpf_htons(config.wireguard_port + 1);

	if (l4_parse(skb, pkt))
		return false;
	if (pkt->proto == IPPROTO_ICMPV6)
		return pkt->ttl == 255 && pkt->icmp_type >= ICMPV6_ROUTER_SOLICITATION &&
		       pkt->icmp_type <= ICMPV6_REDIRECT;
	port = sends ? pkt->sport : pkt->dport;
	return pkt->proto == IPPROTO_UDP && (port == first || (pkt->sport == second && pkt->dport == second));
}

/* Whether the CPU's packet came in plain text, and should be encrypted; e: the destination. Slow path. */
INLINE bool node_came_plain(struct __sk_buff *skb, const struct cpu *c, const struct endpoint *e)
{
	struct prefix *source;

	if (!packet_family_off(&c->pkt) && decide_came_plain(skb, c, e))
		return true;
	if (!config.node_encryption)
		return false;
	source = node_prefix(&c->pkt.src);
	return source && !decide_decrypted(skb, source) && (source->encryption || source->flags & PREFIX_STRICT) &&
	       node_prefix(&c->pkt.dst) && !node_plain(skb, &c->pkt, false);
}

/*
 * Has the other end of a connection send segments that fit into an encrypted packet. The kernel does not know that the
 * packet is encrypted, and what is too large leaves in two fragments. Cost: per SYN.
 */
INLINE void node_limit_segments(struct __sk_buff *skb, const struct packet *pkt, __u32 mtu)
{
	__u32 headers = L4_TCP_SIZE + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u32 at = pkt->l4 + L4_TCP_SIZE;
	struct tcp_mss had;
	__be16 size;

	if (mtu <= headers || !packet_load(skb, pkt, at, &had, sizeof(had)) || had.kind != bpf_htons(0x0204))
		return;
	size = bpf_htons(mtu - headers);
	if (bpf_ntohs(had.size) <= mtu - headers)
		return;
	if (!bpf_l4_csum_replace(skb, pkt->l4 + TCP_CHECKSUM, had.size, size, sizeof(size)))
		bpf_skb_store_bytes(skb, at + offsetof(struct tcp_mss, size), &size, sizeof(size), 0);
}

/*
 * Redirects what this node sends to another one into the device that encrypts. src: the CPU's packet has been given
 * the source c->to.src. Returns a verdict, or TC_ACT_UNSPEC if the packet is not to be encrypted. Cost: per packet that
 * leaves by a wire, one lookup; to nodes three.
 */
APART int node_encrypt(struct __sk_buff *skb, __u32 rewritten)
{
	struct cpu *c = cpu_this();
	struct prefix *to;
	struct endpoint *e;
	struct wire *w;
	__u32 ifindex;

	if (!c)
		return TC_ACT_SHOT;
	to = node_prefix(&c->pkt.dst);
	if (!to)
		return TC_ACT_UNSPEC;
	if (rewritten)
		c->pkt.src = c->to.src;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);
	if (!e || !(e->flags & ENDPOINT_HOST) || !node_prefix(&c->pkt.src) || node_plain(skb, &c->pkt, true))
		return TC_ACT_UNSPEC;
	ifindex = to->encryption;
	if (!ifindex && config.strict_egress && to->flags & PREFIX_STRICT)
		return drop(skb, c, DROP_NOT_ENCRYPTED);
	if (!ifindex || ifindex == skb->ifindex)
		return TC_ACT_UNSPEC;
	w = bpf_map_lookup_elem(&wires, &ifindex);
	if (w && c->pkt.proto == IPPROTO_TCP && c->pkt.tcp_flags & TCP_SYN && c->pkt.fragment == FRAGMENT_NONE)
		node_limit_segments(skb, &c->pkt, w->mtu);
	count(skb, c, FORWARD_ENCRYPT);
	trace(skb, c, FORWARD_ENCRYPT);
	wire_mark_set(skb);
	return bpf_redirect(ifindex, 0);
}

/*
 * Passes a packet that leaves by a wire, or redirects it to WireGuard, if this node sends it to another one. rewritten:
 * its source is c->to.src.
 */
INLINE int node_pass(struct __sk_buff *skb, struct cpu *c, bool rewritten)
{
	int verdict;

	if (config.node_encryption && skb->cb[0] != WIRE_FORWARDED &&
	    (verdict = node_encrypt(skb, rewritten)) != TC_ACT_UNSPEC)
		return verdict;
	return pass(skb, c);
}

#endif
