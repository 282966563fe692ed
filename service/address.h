/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whose addresses are, and which are Services'. Cost: per flow, or when a path is decided. */
#ifndef MYELIN_SERVICE_ADDRESS_H
#define MYELIN_SERVICE_ADDRESS_H

#include "row.h"
#include "../route/owner.h"

/* Makes the key that of any address of the node. */
INLINE void frontend_key_any(struct frontend_key *key)
{
	if (addr_is4(&key->addr))
		key->addr.w[3] = 0;
	else
		__builtin_memset(&key->addr, 0, sizeof(key->addr));
}

/* What serves the port on any address of a node, of the family of the given one. */
INLINE struct frontend *frontend_wildcard(const struct addr *a, __be16 port, __u8 proto)
{
	struct frontend_key key = { .addr = *a, .port = port, .proto = proto };

	frontend_key_any(&key);
	return bpf_map_lookup_elem(&frontends, &key);
}

/* Whether some port of the address is a Service's. */
INLINE bool frontend_address(const struct addr *a)
{
	struct frontend_key key = { .addr = *a };

	return bpf_map_lookup_elem(&frontends, &key);
}

/* Whether some port of the address is a Service's for being a node's. */
INLINE bool node_ports_address(const struct addr *a)
{
	return frontend_wildcard(a, 0, 0) && node_ports_owner(a) != OWNER_OTHER;
}

/* Whether a port of a node may be a Service's: what else nodes are asked for, nobody looks up. */
INLINE bool node_port_may_be(const struct packet *pkt)
{
	__u16 port = bpf_ntohs(pkt->dport);

	return own_ports || (port >= config.node_port_min && port <= config.node_port_max);
}

#endif
