/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that the IPsec device has received: XFRM has decrypted them, and tells from which node's state. It does not
 * verify that their source is that node's, unless they are for the host's stack. Cost: per packet of the device.
 */
#ifndef MYELIN_IPSEC_H
#define MYELIN_IPSEC_H

#include "../../bpf/ethernet.h"
#include "../../drop/unparsed.h"
#include "../../route/decide.h"

/* Reads the node that encrypted the packet, by the address that its state has. Returns false if none has. */
INLINE bool ipsec_peer(struct __sk_buff *skb, struct addr *peer)
{
	struct bpf_xfrm_state x = {};

	if (bpf_skb_get_xfrm_state(skb, 0, &x, sizeof(x), 0))
		return false;
	if (x.family == AF_INET)
		addr_map4(peer, x.remote_ipv4);
	else
		__builtin_memcpy(peer, x.remote_ipv6, sizeof(*peer));
	return true;
}

/* Reads the packet's source, wherever the link-layer header is. Returns false if it has none. */
INLINE bool ipsec_source(struct __sk_buff *skb, struct addr *src)
{
	__be32 four;

	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes_relative(skb, offsetof(struct ipv6hdr, saddr), src, sizeof(*src),
						    BPF_HDR_START_NET);
	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes_relative(skb, offsetof(struct iphdr, saddr), &four, sizeof(four), BPF_HDR_START_NET))
		return false;
	addr_map4(src, four);
	return true;
}

/* Whether the packet's source is an address of the node that encrypted it, or of one of the node's pods. */
INLINE bool ipsec_valid(struct __sk_buff *skb)
{
	struct addr peer = {}, src = {};
	struct prefix *p;

	if (!ipsec_peer(skb, &peer) || !ipsec_source(skb, &src))
		return false;
	p = prefix_find(&src);
	if (!p || addr_is_zero(&p->via))
		return false;
	if (addr_equal(&p->via, &peer))
		return true;
	/* With encapsulating DSR, via is the node's address of the pod's family. */
	p = prefix_find(&p->via);
	return p && p->flags & PREFIX_NODE && addr_equal(&p->via, &peer);
}

/*
 * Has the packet begin with an Ethernet header. XFRM leaves it that of the encrypted packet, if the wire's packets have
 * one, and the kernel does not tell: they have none if a change of the packet's first octet changes the network header.
 * Returns false if the kernel refuses.
 */
INLINE bool ipsec_push(struct __sk_buff *skb)
{
	__u8 first, changed, before, after;

	if (bpf_skb_load_bytes(skb, 0, &first, sizeof(first)) ||
	    bpf_skb_load_bytes_relative(skb, 0, &before, sizeof(before), BPF_HDR_START_NET))
		return false;
	changed = ~first;
	if (bpf_skb_store_bytes(skb, 0, &changed, sizeof(changed), 0) ||
	    bpf_skb_load_bytes_relative(skb, 0, &after, sizeof(after), BPF_HDR_START_NET) ||
	    bpf_skb_store_bytes(skb, 0, &first, sizeof(first), 0))
		return false;
	return before == after || ethernet_push(skb);
}

/* Verifies a decrypted packet and has it begin with an Ethernet header. Returns false if it was dropped. */
INLINE bool ipsec_receive(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || !ethernet_carries(skb))
		return false;
	if (!ipsec_push(skb)) {
		drop_unpushed(skb, HOOK_FROM_WIRE);
		return false;
	}
	if (!ipsec_valid(skb)) {
		packet_parse(skb, &c->pkt, HOOK_FROM_WIRE);
		drop(skb, c, DROP_TUNNEL_SOURCE);
		return false;
	}
	skb->cb[3] = NETKIT_DECRYPTED;
	return true;
}

#endif
