/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Node ports belong to Services: a process of the node that listened on one would never receive anything. */
#ifndef MYELIN_BIND_H
#define MYELIN_BIND_H

#include "socket.h"

#define EADDRINUSE 98

/*
 * Whether a Service has the port on any address of this node. The addresses 0.0.0.0 and :: stand for any address, too.
 * A socket that binds to :: also receives IPv4, unless it is IPv6-only, which programs can't see before kernel 6.1.
 */
INLINE bool bind_taken(const struct addr *a, __be16 port, __u8 proto)
{
	struct addr any4;

	addr_map4(&any4, 0);
	if (addr_is_zero(a))
		return frontend_wildcard(a, port, proto) || frontend_wildcard(&any4, port, proto);
	return frontend_wildcard(a, port, proto) && (addr_equal(a, &any4) || node_ports_owner(a) == OWNER_NODE);
}

/* Keeps sockets of the host's network namespace from binding ports of Services. Cost: per bind. */
INLINE int bind_protect(struct bpf_sock_addr *ctx, const struct addr *a)
{
	if (!config.bind_protection || !ctx->user_port || bpf_get_netns_cookie(ctx) != config.netns_cookie)
		return SOCKET_OK;
	if (likely(!bind_taken(a, ctx->user_port, ctx->protocol)))
		return SOCKET_OK;
	socket_count(SOCKET_PORT_TAKEN);
	if (config.set_retval)
		bpf_set_retval(-EADDRINUSE);
	return SOCKET_REFUSE;
}

INLINE int bind_protect4(struct bpf_sock_addr *ctx)
{
	struct addr addr;

	addr_map4(&addr, ctx->user_ip4);
	return bind_protect(ctx, &addr);
}

INLINE int bind_protect6(struct bpf_sock_addr *ctx)
{
	struct addr addr;

	socket_read6(ctx, &addr);
	return bind_protect(ctx, &addr);
}

#endif
