/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Devices without a link-layer header (WireGuard, IPIP, TUN). Their packets get an Ethernet header when they come to a hook, so that all code finds IP at
 * the same offset; bpf_redirect takes it off packets that leave by such a device. Cost: per packet of such a device.
 */
#ifndef MYELIN_ETHERNET_H
#define MYELIN_ETHERNET_H

#include "common.h"

/* Marks skb as seen by to_wire_l3, which sends it to its device once more. skb->cb survives bpf_redirect. */
#define ETHERNET_POPPED 0x6d796c33

/* Whether the packet is one that hooks parse. */
INLINE bool ethernet_carries(const struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6);
}

/* Puts an Ethernet header with zero MAC addresses before the IP header. False if the kernel refuses. */
INLINE bool ethernet_push(struct __sk_buff *skb)
{
	__be16 type = skb->protocol;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return false;
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0);
}

/* Sends the packet out of its own device without the Ethernet header, which to_wire_l3 then lets pass. */
INLINE int ethernet_pop(struct __sk_buff *skb)
{
	skb->cb[0] = ETHERNET_POPPED;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
