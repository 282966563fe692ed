/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Devices without a link-layer header (WireGuard, IPIP, TUN). Hooks add an Ethernet header to their packets, so that
 * all code finds the IP header at the same offset; bpf_redirect removes it from packets that leave by such a device.
 * Cost: per packet of such a device.
 */
#ifndef MYELIN_ETHERNET_H
#define MYELIN_ETHERNET_H

#include "common.h"

/* Marks an skb that to_wire_l3 has processed and sent to its device again. skb->cb survives bpf_redirect. */
#define ETHERNET_POPPED 0x6d796c33

/* Whether the packet is IPv4 or IPv6, which hooks parse. */
INLINE bool ethernet_carries(const struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6);
}

/* Inserts an Ethernet header with zero MAC addresses. Returns false if the kernel refuses. */
INLINE bool ethernet_push(struct __sk_buff *skb)
{
	__be16 type = skb->protocol;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return false;
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0);
}

/* Sends the packet to its device again without the Ethernet header. to_wire_l3 then passes it. */
INLINE int ethernet_pop(struct __sk_buff *skb)
{
	skb->cb[0] = ETHERNET_POPPED;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
