/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* VXLAN (RFC 7348) with the kernel's device in external mode: hooks only set the destination node. */
#ifndef MYELIN_TUNNEL_H
#define MYELIN_TUNNEL_H

#include "../../bpf/cpu.h"

/* Marks an skb that has its tunnel key, for to_wire on the tunnel device. skb->cb survives bpf_redirect. */
#define TUNNEL_KEY_SET 0x6d79656c

/* The part of the key that kernels before 6.0 know. They refuse a larger key; newer ones accept a smaller one. */
#define TUNNEL_KEY_SIZE offsetof(struct bpf_tunnel_key, local_ipv4)

/*
 * Whether the packet is at the tunnel device. Compares with a constant, so that packets of other wires do not pay for a
 * lookup of the wire's flags. Cost: per packet.
 */
INLINE bool tunnel_device(const struct __sk_buff *skb)
{
	return config.tunnel && skb->ifindex == config.tunnel_ifindex;
}

/* Makes a packet of the tunnel one for this node, whose MAC the sending node does not know. Cost: per packet. */
INLINE void tunnel_receive(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(skb, PACKET_HOST);
}

/* Sets the node that the packet is sent to. Returns false if the kernel refuses. Cost: per packet. */
INLINE bool tunnel_key_set(struct __sk_buff *skb, const struct addr *node)
{
	struct bpf_tunnel_key key = {};

	key.tunnel_id = config.vni;
	key.tunnel_ttl = 64;
	skb->cb[0] = TUNNEL_KEY_SET;
	if (config.tunnel == TUNNEL_IPV4) {
		key.remote_ipv4 = bpf_ntohl(node->w[3]);
		return !bpf_skb_set_tunnel_key(skb, &key, TUNNEL_KEY_SIZE, BPF_F_ZERO_CSUM_TX);
	}
	__builtin_memcpy(key.remote_ipv6, node, sizeof(key.remote_ipv6));
	return !bpf_skb_set_tunnel_key(skb, &key, TUNNEL_KEY_SIZE, BPF_F_TUNINFO_IPV6 | BPF_F_ZERO_CSUM_TX);
}

/*
 * Reads the outer source address of a packet; ::, which is no node's, if it was not encapsulated. Cost: per packet of
 * the tunnel.
 */
INLINE void tunnel_outer(struct __sk_buff *skb, struct addr *outer)
{
	struct bpf_tunnel_key key = {};

	__builtin_memset(outer, 0, sizeof(*outer));
	if (bpf_skb_get_tunnel_key(skb, &key, TUNNEL_KEY_SIZE, config.tunnel == TUNNEL_IPV6 ? BPF_F_TUNINFO_IPV6 : 0))
		return;
	if (config.tunnel == TUNNEL_IPV6)
		__builtin_memcpy(outer, key.remote_ipv6, sizeof(*outer));
	else
		addr_map4(outer, bpf_htonl(key.remote_ipv4));
}

/* tunnel_key_set for the fast path, whose stack has no room for the key. high, low: the halves of the address. */
APART int tunnel_key_set_fast(struct __sk_buff *skb, __u64 high, __u64 low)
{
	struct addr node = { .d = { high, low } };

	return tunnel_key_set(skb, &node);
}

/* Whether a packet of the tunnel device came from a node, whose address has these halves. Cost: per packet. */
APART int tunnel_outer_is(struct __sk_buff *skb, __u64 high, __u64 low)
{
	struct addr outer;

	tunnel_outer(skb, &outer);
	return outer.d[0] == high && outer.d[1] == low;
}

/* Directs an error or reset to the node that sent the packet. Returns false if the kernel refuses. Slow path. */
INLINE bool tunnel_key_turn(struct __sk_buff *skb)
{
	struct bpf_tunnel_key key = {};
	__u64 flags = config.tunnel == TUNNEL_IPV6 ? BPF_F_TUNINFO_IPV6 : 0;

	if (bpf_skb_get_tunnel_key(skb, &key, TUNNEL_KEY_SIZE, flags))
		return false;
	key.tunnel_ttl = 64;
	skb->cb[0] = TUNNEL_KEY_SET;
	return !bpf_skb_set_tunnel_key(skb, &key, TUNNEL_KEY_SIZE, flags | BPF_F_ZERO_CSUM_TX);
}

#endif
