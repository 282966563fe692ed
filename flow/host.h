/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Policies of the node itself: for what its own processes receive and send on wires. All these flows have conntrack
 * entries while policies select the node.
 */
#ifndef MYELIN_HOST_H
#define MYELIN_HOST_H

#include "track.h"
#include "../bpf/icmp/reset.h"

/*
 * Whether the stack delivers a packet locally although its destination is not in endpoints: multicast, broadcast,
 * link-local, or an address that was just added.
 */
INLINE bool host_receives(struct __sk_buff *skb, const struct packet *pkt)
{
	struct bpf_fib_lookup f = {};
	long rc;

	if (addr_is_multicast(&pkt->dst) || addr_is_martian(&pkt->dst))
		return true;
	rc = fib_lookup(skb, pkt, &pkt->dst, &f);
	return rc == BPF_FIB_LKUP_RET_NOT_FWDED || rc == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/*
 * Whether the node itself receives the CPU's packet, or sends it (sends). Not the requests for an address that it sends
 * while it has none. Slow path.
 */
APART int host_owns(struct __sk_buff *skb, __u32 sends)
{
	struct cpu *c = cpu_this();
	struct packet *pkt;
	struct endpoint *e;

	if (!c)
		return 1;
	pkt = &c->pkt;
	e = bpf_map_lookup_elem(&endpoints, sends ? &pkt->src : &pkt->dst);
	if (e)
		return e->flags & ENDPOINT_HOST;
	if (sends)
		return skb->sk && !(addr_is4(&pkt->src) ? !pkt->src.w[3] : addr_is_zero(&pkt->src));
	return host_receives(skb, pkt);
}

/*
 * Enforces the node's policies on the CPU's packet, which the node receives, or sends (sends). Returns NEXT_FORWARD or
 * a drop reason. Cost: per packet of the node itself, where policies select it.
 */
APART enum next host_enforce(struct __sk_buff *skb, __u32 sends)
{
	struct cpu *c = cpu_this();
	enum next outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	if (!policy_selects(SLOT_HOST) || !host_owns(skb, sends))
		return NEXT_FORWARD;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome)
		return outcome;
	if (host_link_local(&c->pkt))
		return NEXT_FORWARD;
	__builtin_memset(&c->path, 0, sizeof(c->path));
	c->path.action = PATH_STACK;
	c->path.flags = PATH_TRACKED | PATH_POLICY;
	if (sends)
		c->path.src_slot = SLOT_HOST;
	else
		c->path.dst_slot = SLOT_HOST;
	c->path.epoch = epoch_sum(0, SLOT_HOST);
	c->pkt.slot = SLOT_HOST;
	return track_begin(skb);
}

/* Whether the CPU's packet may be for a NAT port whose entry is still to be copied. Slow path, while tables grow. */
APART int host_awaits_entry(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	__u16 port;

	if (!c || c->pkt.hook != HOOK_FROM_WIRE || l4_parse(skb, &c->pkt) || !flow_awaits_entry(&c->pkt))
		return 0;
	port = bpf_ntohs(c->pkt.dport);
	return port_in(PORT_MASQUERADE, port) || port_in(PORT_SERVICE, port);
}

/* Passes a packet to the host if the host's policies allow it. */
INLINE int host_pass(struct __sk_buff *skb, struct cpu *c)
{
	int outcome;

	if (unlikely(entries_copied_until) && host_awaits_entry(skb))
		return drop(skb, c, DROP_ENTRY_COPIED);
	outcome = config.host_policy && tracking ? host_enforce(skb, false) : 0;
	return outcome ? refuse_flow(skb, c, outcome) : pass(skb, c);
}

/*
 * Passes a wire's packet to the host; unknown: its destination is in no endpoint. If it came encrypted, the error is
 * the datapath's, which is encrypted, too: the kernel's would quote in plain text to a node what that has sent. Slow
 * path.
 */
INLINE int stack_pass(struct __sk_buff *skb, struct cpu *c, bool unknown)
{
	if (config.encryption && unknown && decide_encrypted_source(skb, c))
		return icmp_refuse(skb, DROP_NO_ROUTE, 0);
	return host_pass(skb, c);
}

#endif
