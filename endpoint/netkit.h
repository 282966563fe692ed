/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pod links that are netkit devices. from_pod is attached to them twice: to the device, which runs it while the pod
 * transmits (ingress_ifindex is 0), and to tc ingress, for what did not pass there: packets of a pod whose link is new,
 * of service_repeat, and of a pod that loads BPF programs and has one send by bpf_redirect_peer. Such a pod can also
 * write skb->cb, so a packet that has been processed has a mark that no pod can guess. Cost: per packet.
 */
#ifndef MYELIN_NETKIT_H
#define MYELIN_NETKIT_H

#include "../bpf/common.h"

/*
 * Marks a packet from a pod for to_pod, in skb->cb[1]. No pod can forge it: what a pod sends reaches the egress side of
 * another link only by netkit_enter, or through the host's stack, which overwrites skb->cb.
 */
#define NETKIT_FORWARDED 0x6d796b66

/*
 * Marks a packet that IPsec has decrypted, in skb->cb[3]. Its state (secpath) must not come into a pod's network
 * namespace, whose kernel would drop the packet for having no policy for it: bpf_redirect_peer takes it there before
 * 6.15, a virtual device never does. Of any other packet the mark costs a queue, nothing else.
 */
#define NETKIT_DECRYPTED 0x6d797370

/* True while a pod transmits by a netkit device. */
INLINE bool netkit_transmits(const struct __sk_buff *skb)
{
	return config.netkit && !skb->ingress_ifindex;
}

INLINE void netkit_mark(struct __sk_buff *skb, __u64 mark)
{
	skb->cb[1] = (__u32)mark;
	skb->cb[2] = (__u32)(mark >> 32);
}

/* Whether from_pod has processed the packet already. Removes all marks. */
INLINE bool netkit_passed(struct __sk_buff *skb)
{
	bool passed;

	if (!config.netkit)
		return false;
	passed = skb->ingress_ifindex && ((__u64)skb->cb[2] << 32 | skb->cb[1]) == config.netkit_mark;
	netkit_mark(skb, 0);
	return passed;
}

/* Whether from_pod has sent the packet here. Removes the mark. */
INLINE bool netkit_forwarded(struct __sk_buff *skb)
{
	if (!(config.netkit || config.bandwidth || config.ipsec) || skb->cb[1] != NETKIT_FORWARDED)
		return false;
	skb->cb[1] = 0;
	return true;
}

/*
 * Sends the packet into the network namespace behind the device; queued: through the device's qdisc. While a pod
 * transmits, the kernel refuses bpf_redirect_peer, and what IPsec has decrypted must not take it. In all these cases
 * to_pod sees the packet, too. Returns a verdict.
 */
INLINE int netkit_enter(struct __sk_buff *skb, __u32 ifindex, __u32 hook, bool queued)
{
	bool decrypted = config.ipsec && hook == HOOK_FROM_WIRE && skb->cb[3] == NETKIT_DECRYPTED;

	if (!queued && !decrypted && (hook != HOOK_FROM_POD || !netkit_transmits(skb)))
		return bpf_redirect_peer(ifindex, 0);
	skb->cb[1] = NETKIT_FORWARDED;
	return bpf_redirect(ifindex, 0);
}

#endif
