/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Services at the socket: when an application connects to a Service, the address is replaced by a backend's before
 * there is a packet, so that packets need no translation. The programs run in the application's context and can be
 * interrupted by softirqs: they must not use struct cpu.
 */
#ifndef MYELIN_SOCKET_H
#define MYELIN_SOCKET_H

#include "service.h"
#include "origin.h"
#include "stats.h"
#include "../event/event.h"

#define SOCKET_OK 1
#define SOCKET_REFUSE 0

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

/* What became of sockets that connected to a Service, or bind to a port of one. */
enum socket_outcome {
	SOCKET_TRANSLATED,
	SOCKET_NO_BACKEND, /* refused: the Service has no backend */
	SOCKET_NONE_HERE,  /* refused: the traffic policy requires a backend on this node, and there is none */
	SOCKET_FAMILY,     /* not translated: the socket can't reach the backend's family */
	SOCKET_PORT_TAKEN, /* bind refused: the port is a Service's */
	SOCKET_EVENT_LOST, /* an event was not sent, because of the rate or a full ring */
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

/* The events that sockets on a CPU may still cause in the current second. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct event_budget);
} socket_budgets SEC(".maps");

/*
 * Reports that the socket gets the address of a backend. An interrupted program may exceed the CPU's budget by one
 * event. Cost: per connection; for unconnected UDP, per destination.
 */
INLINE void socket_trace(struct bpf_sock_addr *ctx, const struct origin *origin, const struct origin_key *key)
{
	struct event_budget *budget;
	struct event *e;
	__u32 zero = 0;

	if (!config.monitor || !(listening & LISTEN_TRACE))
		return;
	budget = bpf_map_lookup_elem(&socket_budgets, &zero);
	e = budget ? event_reserve(budget, config.trace_rate, config.trace_burst) : NULL;
	if (!e) {
		socket_count(SOCKET_EVENT_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time_ns = bpf_ktime_get_ns();
	e->type = EVENT_SOCKET;
	e->family = addr_is4(&origin->addr) ? 4 : 6;
	e->proto = ctx->protocol;
	e->dst = origin->addr;
	e->dport = origin->port;
	e->xlated_dst = key->addr;
	e->xlated_dport = key->port;
	e->cookie = key->cookie;
	e->netns = bpf_get_netns_cookie(ctx);
	e->cgroup = bpf_get_current_cgroup_id();
	bpf_ringbuf_submit(e, 0);
}

/* Refuses the connection. Before kernel 5.18 the application always gets EPERM. */
INLINE enum socket_outcome socket_refuse(const struct frontend *f)
{
	bool elsewhere = f->flags & FRONTEND_DROP_INTERNAL;

	socket_count(elsewhere ? SOCKET_NONE_HERE : SOCKET_NO_BACKEND);
	if (config.set_retval)
		bpf_set_retval(elsewhere ? -EHOSTUNREACH : -ECONNREFUSED);
	return SOCKET_REFUSE;
}

/* Whether the socket is to be translated: pods' sockets are not if Services at the socket are for the host only. */
INLINE bool socket_enabled(struct bpf_sock_addr *ctx)
{
	return !config.socket_host_only || bpf_get_netns_cookie(ctx) == config.netns_cookie;
}

/* Stores what the socket asked for. Returns false if it has sent to the backend before. */
INLINE bool socket_remember(const struct origin_key *key, const struct origin *origin)
{
	struct origin *last = bpf_map_lookup_elem(&origins, key);

	if (last && last->backend == origin->backend && last->port == origin->port &&
	    addr_equal(&last->addr, &origin->addr))
		return false;
	bpf_map_update_elem(&origins, key, origin, BPF_ANY);
	return true;
}

/* Whether the socket is that of a health check, whose backend may have the address of another Service. */
INLINE bool socket_probes(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && (sk->mark & PROBE_MARK_MASK) == PROBE_MARK;
}

/*
 * Replaces the address of a Service by that of a backend. Returns SOCKET_OK or SOCKET_REFUSE. Cost: per connection; for
 * unconnected UDP, per datagram.
 */
INLINE enum socket_outcome socket_translate(struct bpf_sock_addr *ctx, struct addr *addr, __be16 *port, bool only4)
{
	struct frontend *f = frontend_find(addr, *port, ctx->protocol, SCOPE_INTERNAL);
	struct origin origin = { .addr = *addr, .port = *port };
	struct origin_key key = {};
	struct addr client = {};
	struct backend *b = NULL;

	if (likely(!f) || socket_probes(ctx))
		return SOCKET_OK;
	if (f->affinity)
		client_key(&client, bpf_get_netns_cookie(ctx), !addr_is4(&origin.addr));
	origin.backend = service_choose(f, &client, SCOPE_INTERNAL, bpf_get_prandom_u32(), &b);
	if (!origin.backend || !b)
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
	if (socket_remember(&key, &origin)) {
		service_stat_connect(service_stat_find(f->service, b));
		socket_trace(ctx, &origin, &key);
	}
	socket_count(SOCKET_TRANSLATED);
	return SOCKET_OK;
}

/* Copies word by word: the verifier allows no pointer into the context. */
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

/* Also handles IPv4 addresses on IPv6 sockets: the socket API maps them into IPv6 as the datapath does. */
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

/*
 * Finds the address that the socket connected to before it was translated to this peer, NULL if it was not translated.
 */
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
