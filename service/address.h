/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whose addresses are, and which are Services'. Cost: per flow, or when a path is decided. */
#ifndef MYELIN_SERVICE_ADDRESS_H
#define MYELIN_SERVICE_ADDRESS_H

#include "row.h"
#include "../route/path.h"

enum address_owner {
	OWNER_OTHER,
	OWNER_NODE, /* this node's own, loopback included */
	OWNER_PEER, /* another node's */
};

/* node_ports, a constant: addresses of nodes on which no node port answers are others. */
INLINE int address_find_owner(const struct addr *a, bool node_ports)
{
	struct endpoint *e;
	struct prefix *p;

	if (addr_is4(a) ? a->b[12] == 127 : (!a->d[0] && a->d[1] == bpf_cpu_to_be64(1)))
		return OWNER_NODE;
	e = bpf_map_lookup_elem(&endpoints, a);
	if (e)
		return e->flags & ENDPOINT_HOST && !(node_ports && e->flags & ENDPOINT_NO_PORTS) ? OWNER_NODE : OWNER_OTHER;
	p = prefix_find(a);
	return p && p->flags & PREFIX_NODE && !(node_ports && p->flags & PREFIX_NO_PORTS) ? OWNER_PEER : OWNER_OTHER;
}

INLINE int address_owner(const struct addr *a)
{
	return address_find_owner(a, false);
}

/* Whose node ports answer on the address. */
INLINE int node_ports_owner(const struct addr *a)
{
	return address_find_owner(a, true);
}

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
