/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The proxy. Flows that policies allow only with L7 rules (FLOW_PROXY) are redirected to it, in both directions: TCP to
 * a network namespace in which every address is local, where the proxy accepts the client's connection and opens the
 * one to the server from the client's address; UDP to a TUN device, from which it reads the packets themselves. What
 * the proxy sends comes back by the same devices (from_proxy).
 */
#ifndef MYELIN_L7_H
#define MYELIN_L7_H

#include "../route/path.h"

/* The devices of the proxy, in the node's network namespace. */
struct proxy_devices {
	__u32 stream_ifindex;   /* of the veth that leads to the proxy's network namespace; 0: none */
	__u32 datagram_ifindex; /* of the TUN device; 0: none */
	struct mac stream_mac;  /* of the veth's end in the proxy's network namespace */
	struct mac link_mac;    /* of its end here */
};

/* One element. The agent writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct proxy_devices);
} proxy_device SEC(".maps");

enum proxy_socket {
	PROXY_LISTENER,
	PROXY_SOCKETS,
};

/* The proxy's listening socket. The kernel removes it when the proxy ends. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, PROXY_SOCKETS);
	__type(key, __u32);
	__type(value, __u64);
} proxy_sockets SEC(".maps");

/* Whether the proxy runs. Cost: per flow that passes through it, and per DNS message. */
INLINE bool l7_alive(void)
{
	__u32 i = PROXY_LISTENER;
	struct bpf_sock *sk = bpf_map_lookup_elem(&proxy_sockets, &i);

	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/*
 * Turns c->path into the path to the proxy, for packets of the protocol. Returns NEXT_FORWARD or a drop reason. Cost:
 * per flow, and per DNS message.
 */
APART enum next l7_path(__u32 proto)
{
	struct cpu *c = cpu_this();
	struct proxy_devices *d;
	struct path *p;
	__u32 zero = 0;

	if (!c)
		return DROP_PROXY_DOWN;
	p = &c->path;
	d = bpf_map_lookup_elem(&proxy_device, &zero);
	if (!d || !d->stream_ifindex || !l7_alive())
		return DROP_PROXY_DOWN;
	p->action = PATH_PROXY;
	p->mtu = 0; /* the proxy's segments have the MTU of the other end */
	if (proto == IPPROTO_UDP) {
		p->ifindex = d->datagram_ifindex;
		__builtin_memset(&p->dmac, 0, sizeof(p->dmac));
		__builtin_memset(&p->smac, 0, sizeof(p->smac));
		return NEXT_FORWARD;
	}
	p->ifindex = d->stream_ifindex;
	p->dmac = d->stream_mac;
	p->smac = d->link_mac;
	return NEXT_FORWARD;
}

/* Returns how packets on c->path are sent, where that would be the given action without the proxy. */
INLINE __u32 l7_action(const struct path *p, __u32 action)
{
	return config.l7 && p->action == PATH_PROXY ? PATH_PROXY : action;
}

#endif
