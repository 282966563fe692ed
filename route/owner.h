/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds out which node an address belongs to. Slow path. */
#ifndef MYELIN_OWNER_H
#define MYELIN_OWNER_H

#include "path.h"

enum address_owner {
	OWNER_OTHER,
	OWNER_NODE, /* the node's own address, including loopback */
	OWNER_PEER, /* an address of another node */
};

/* With node_ports set, addresses of nodes on which no node port is served count as OWNER_OTHER. */
INLINE enum address_owner address_find_owner(const struct addr *a, bool node_ports)
{
	struct endpoint *e;
	struct prefix *p;

	if (addr_is4(a) ? a->b[12] == 127 : (!a->d[0] && a->d[1] == bpf_cpu_to_be64(1)))
		return OWNER_NODE;
	e = bpf_map_lookup_elem(&endpoints, a);
	if (e)
		return e->flags & ENDPOINT_HOST && !(node_ports && e->flags & ENDPOINT_NO_PORTS) ? OWNER_NODE
												 : OWNER_OTHER;
	p = prefix_find(a);
	return p && p->flags & PREFIX_NODE && !(node_ports && p->flags & PREFIX_NO_PORTS) ? OWNER_PEER : OWNER_OTHER;
}

INLINE enum address_owner address_owner(const struct addr *a)
{
	return address_find_owner(a, false);
}

/* Returns the node whose node ports are served on the address. */
INLINE enum address_owner node_ports_owner(const struct addr *a)
{
	return address_find_owner(a, true);
}

#endif
