/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Services at the socket: where an application asks for a Service, it gets a backend before there is a packet, and no packet costs anything. These
 * programs run in the application's own context, where softirqs come in between: they must not use what a CPU works on (struct cpu).
 */
#ifndef MYELIN_SOCKET_H
#define MYELIN_SOCKET_H

#include "service.h"
#include "origin.h"

#define SOCKET_OK 1
#define SOCKET_REFUSE 0

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

/* What became of sockets that asked for a Service, or for its port. */
enum socket_outcome {
	SOCKET_TRANSLATED,
	SOCKET_NO_BACKEND, /* refused: no backend anywhere */
	SOCKET_NONE_HERE,  /* refused: the traffic policy wants one of this node, and there is none */
	SOCKET_FAMILY,     /* left as it was: the socket can't reach the backend's family */
	SOCKET_PORT_TAKEN, /* refused to bind: the port is a Service's */
	SOCKET_OUTCOMES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SOCKET_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} socket_outcomes SEC(".maps");

INLINE void socket_count(__u32 outcome)
{
	__u64 *n = bpf_map_lookup_elem(&socket_outcomes, &outcome);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* The error that the application sees is EPERM before kernel 5.18, which can't say another one. */
INLINE int socket_refuse(const struct frontend *f)
{
	bool elsewhere = f->flags & FRONTEND_DROP_INTERNAL;

	socket_count(elsewhere ? SOCKET_NONE_HERE : SOCKET_NO_BACKEND);
	if (config.set_retval)
		bpf_set_retval(elsewhere ? -EHOSTUNREACH : -ECONNREFUSED);
	return SOCKET_REFUSE;
}

/* Sockets of pods are left alone where only the host's are wanted. */
INLINE bool socket_enabled(struct bpf_sock_addr *ctx)
{
	return !config.socket_host_only || bpf_get_netns_cookie(ctx) == config.netns_cookie;
}

/* Puts a backend in the place of a Service's address. Returns SOCKET_OK or SOCKET_REFUSE. Cost: per connection; of unconnected UDP, per datagram. */
INLINE int socket_translate(struct bpf_sock_addr *ctx, struct addr *addr, __be16 *port, bool only4)
{
	struct frontend *f = frontend_find(addr, *port, ctx->protocol, SCOPE_INTERNAL);
	struct origin asked = { .addr = *addr, .port = *port };
	struct origin_key key = {};
	struct addr client = {};
	struct backend *b = NULL;

	if (likely(!f))
		return SOCKET_OK;
	if (f->affinity)
		client_key(&client, bpf_get_netns_cookie(ctx), !addr_is4(&asked.addr));
	asked.backend = service_choose(f, &client, SCOPE_INTERNAL, bpf_get_prandom_u32(), &b);
	if (!asked.backend || !b)
		return socket_refuse(f);
	if (only4 && !addr_is4(&b->addr)) {
		socket_count(SOCKET_FAMILY);
		return SOCKET_OK;
	}
	key.cookie = bpf_get_socket_cookie(ctx);
	key.addr = b->addr;
	key.port = b->port;
	*addr = b->addr;
	*port = b->port;
	bpf_map_update_elem(&origins, &key, &asked, BPF_ANY);
	socket_count(SOCKET_TRANSLATED);
	return SOCKET_OK;
}

/* Word by word: the verifier takes no pointer into the context. */
INLINE void socket_read6(const struct bpf_sock_addr *ctx, struct addr *a)
{
	a->w[0] = ctx->user_ip6[0];
	a->w[1] = ctx->user_ip6[1];
	a->w[2] = ctx->user_ip6[2];
	a->w[3] = ctx->user_ip6[3];
}

INLINE void socket_write6(struct bpf_sock_addr *ctx, const struct addr *a)
{
	ctx->user_ip6[0] = a->w[0];
	ctx->user_ip6[1] = a->w[1];
	ctx->user_ip6[2] = a->w[2];
	ctx->user_ip6[3] = a->w[3];
}

INLINE int socket_connect4(struct bpf_sock_addr *ctx)
{
	__be16 port = ctx->user_port;
	struct addr addr;
	int verdict;

	if (!socket_enabled(ctx))
		return SOCKET_OK;
	addr_map4(&addr, ctx->user_ip4);
	verdict = socket_translate(ctx, &addr, &port, true);
	ctx->user_ip4 = addr.w[3];
	ctx->user_port = port;
	return verdict;
}

/* Also what an IPv6 socket says to IPv4, whose addresses are mapped there as they are in here. */
INLINE int socket_connect6(struct bpf_sock_addr *ctx)
{
	__be16 port = ctx->user_port;
	struct addr addr;
	int verdict;

	if (!socket_enabled(ctx))
		return SOCKET_OK;
	socket_read6(ctx, &addr);
	verdict = socket_translate(ctx, &addr, &port, false);
	socket_write6(ctx, &addr);
	ctx->user_port = port;
	return verdict;
}

/* What the socket asked for, where it talks to this peer; NULL if to the peer itself. */
INLINE struct origin *socket_origin(struct bpf_sock_addr *ctx, const struct addr *peer)
{
	struct origin_key key = { .cookie = bpf_get_socket_cookie(ctx), .addr = *peer, .port = ctx->user_port };

	return bpf_map_lookup_elem(&origins, &key);
}

INLINE int socket_peername4(struct bpf_sock_addr *ctx)
{
	struct origin *o;
	struct addr peer;

	addr_map4(&peer, ctx->user_ip4);
	o = socket_origin(ctx, &peer);
	if (o) {
		ctx->user_ip4 = o->addr.w[3];
		ctx->user_port = o->port;
	}
	return SOCKET_OK;
}

INLINE int socket_peername6(struct bpf_sock_addr *ctx)
{
	struct origin *o;
	struct addr peer;

	socket_read6(ctx, &peer);
	o = socket_origin(ctx, &peer);
	if (o) {
		socket_write6(ctx, &o->addr);
		ctx->user_port = o->port;
	}
	return SOCKET_OK;
}

#endif
