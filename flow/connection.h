/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP connections without a conntrack entry: they were established before any policy applied, or their entry was
 * removed. The kernels of the pods still have the sockets, and show which side opened the connection.
 * Cost: slow path, two socket lookups for each end on this node.
 */
#ifndef MYELIN_CONNECTION_H
#define MYELIN_CONNECTION_H

#include "../policy/policy.h"
#include "flow.h"

struct netns {
	__s32 id;        /* nsid in the node's namespace; NETNS_HOST: the node's namespace itself */
	__u32 forgeable; /* true: the pod can forge the state of its sockets (CAP_NET_ADMIN: TCP_REPAIR) */
};

/* The network namespaces of pods, by endpoint slot. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct netns);
} pod_netns SEC(".maps");

#define NETNS_HOST -1 /* BPF_F_CURRENT_NETNS: hooks are attached to devices in the node's namespace */

/* What an endpoint's sockets show about a connection. */
enum connection {
	CONNECTION_UNKNOWN,  /* the endpoint is not on this node */
	CONNECTION_NONE,     /* the endpoint has no such connection */
	CONNECTION_OPENED,   /* the endpoint opened it */
	CONNECTION_ACCEPTED, /* the peer opened it */
	CONNECTION_CLAIMED,  /* the peer opened it, but the pod could have forged that */
};

/*
 * Returns the state of the endpoint's socket between local and remote, or of its listening socket if the remote port
 * is 0; BPF_TCP_CLOSE if there is no such socket.
 */
INLINE __u32 socket_state(struct __sk_buff *skb, struct cpu *c, __s32 netns, const struct addr *local,
			  __be16 local_port, const struct addr *remote, __be16 remote_port)
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
 * Looks the connection of the CPU's packet up in the namespace of the endpoint with the slot: the packet's sender, or
 * its receiver. A connection counts as accepted if a socket listens on its local port, since programs do not connect
 * from such a port. Returns an enum connection. Slow path.
 */
APART enum connection connection_at(struct __sk_buff *skb, __u32 slot, __u32 sender)
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

/* Which side of its connection sent the CPU's segment. */
enum connection_side {
	SEGMENT_OF_NONE,     /* there is no such connection */
	SEGMENT_OF_OPENER,
	SEGMENT_OF_ACCEPTOR,
	SEGMENT_OF_EITHER,   /* only the sender's sockets say that the peer opened it, and the sender can forge them */
};

/* Looks at both ends, if they are on this node. The receiver's sockets take precedence: the sender can't forge them. */
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
