/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP connections without a row: they were there before any policy, or their row is gone. The kernels of the pods still know them, and which side opened
 * them. Cost: slow path, two socket lookups for each end that is ours.
 */
#ifndef MYELIN_CONNECTION_H
#define MYELIN_CONNECTION_H

#include "../policy/policy.h"
#include "flow.h"

struct netns {
	__s32 id;        /* as the node's namespace numbers it; NETNS_HOST for the host */
	__u32 forgeable; /* true: the pod may change what its kernel says (CAP_NET_ADMIN: TCP_REPAIR) */
};

/* The network namespaces of pods, by endpoint slot. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct netns);
} pod_netns SEC(".maps");

#define NETNS_HOST -1 /* BPF_F_CURRENT_NETNS: hooks hang on devices of the host's namespace */

enum connection {
	CONNECTION_UNKNOWN,  /* not an endpoint of this node */
	CONNECTION_NONE,     /* the endpoint's kernel has no such connection */
	CONNECTION_OPENED,   /* the endpoint opened it */
	CONNECTION_ACCEPTED, /* its peer did */
	CONNECTION_CLAIMED,  /* its peer did, says a kernel that the pod may change */
};

/* The state of the endpoint's socket between local and remote; with remote port 0, of the one that listens. BPF_TCP_CLOSE if there is none. */
INLINE __u32 socket_state(struct __sk_buff *skb, struct cpu *c, __s32 netns, const struct addr *local, __be16 local_port, const struct addr *remote, __be16 remote_port)
{
	struct bpf_sock_tuple *t = (void *)c->scratch;
	__u32 size = sizeof(t->ipv6);
	struct bpf_sock *sk;
	__u32 state;

	if (addr_is4(local)) {
		size = sizeof(t->ipv4);
		t->ipv4.saddr = remote->w[3];
		t->ipv4.daddr = local->w[3];
		t->ipv4.sport = remote_port;
		t->ipv4.dport = local_port;
	} else {
		__builtin_memcpy(t->ipv6.saddr, remote, 16);
		__builtin_memcpy(t->ipv6.daddr, local, 16);
		t->ipv6.sport = remote_port;
		t->ipv6.dport = local_port;
	}
	sk = bpf_skc_lookup_tcp(skb, t, size, (__s64)netns, 0);
	if (!sk)
		return BPF_TCP_CLOSE;
	state = sk->state;
	bpf_sk_release(sk);
	return state;
}

/*
 * What the kernel of the endpoint with the slot knows of the connection of the CPU's packet, whose sender or receiver the endpoint is. A connection whose
 * local port is listened on was accepted: a socket that is connected from such a port is not what programs do.
 */
APART int connection_at(struct __sk_buff *skb, __u32 slot, __u32 sender)
{
	const struct addr *local, *remote;
	__be16 local_port, remote_port;
	struct cpu *c = cpu_this();
	struct netns *netns;

	if (!c || !slot)
		return CONNECTION_UNKNOWN;
	netns = bpf_map_lookup_elem(&pod_netns, &slot);
	if (!netns)
		return CONNECTION_NONE;
	local = sender ? &c->pkt.src : &c->pkt.dst;
	remote = sender ? &c->pkt.dst : &c->pkt.src;
	local_port = sender ? c->pkt.sport : c->pkt.dport;
	remote_port = sender ? c->pkt.dport : c->pkt.sport;
	switch (socket_state(skb, c, netns->id, local, local_port, remote, remote_port)) {
	case BPF_TCP_CLOSE:
	case BPF_TCP_LISTEN:
		return CONNECTION_NONE;
	case BPF_TCP_SYN_SENT:
		return CONNECTION_OPENED;
	case BPF_TCP_NEW_SYN_RECV:
		return CONNECTION_ACCEPTED;
	}
	if (socket_state(skb, c, netns->id, local, local_port, remote, 0) != BPF_TCP_LISTEN)
		return CONNECTION_OPENED;
	return netns->forgeable ? CONNECTION_CLAIMED : CONNECTION_ACCEPTED;
}

/* Who opened the connection of the CPU's segment, as its sender sees it. */
enum connection_side {
	SEGMENT_OF_NONE,
	SEGMENT_OF_OPENER,
	SEGMENT_OF_ACCEPTOR,
	SEGMENT_OF_EITHER, /* only the sender's own kernel says that the peer opened it, and the sender may have made it say so */
};

/* Asks both ends, as far as they are of this node. What the receiver's kernel says counts for more: the sender has no influence on it. */
INLINE enum connection_side connection_side(struct __sk_buff *skb, const struct cpu *c)
{
	int receiver = connection_at(skb, c->path.dst_slot, false), sender;

	if (receiver == CONNECTION_NONE)
		return SEGMENT_OF_NONE;
	sender = connection_at(skb, c->path.src_slot, true);
	if (sender == CONNECTION_NONE)
		return SEGMENT_OF_NONE;
	if (receiver != CONNECTION_UNKNOWN)
		return receiver == CONNECTION_OPENED ? SEGMENT_OF_ACCEPTOR : SEGMENT_OF_OPENER;
	if (sender == CONNECTION_CLAIMED)
		return SEGMENT_OF_EITHER;
	return sender == CONNECTION_ACCEPTED ? SEGMENT_OF_ACCEPTOR : SEGMENT_OF_OPENER;
}

#endif
