/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Owners of addresses, and addresses that belong to Services. Cost: per flow, or when a path is decided. */
#ifndef MYELIN_SERVICE_ADDRESS_H
#define MYELIN_SERVICE_ADDRESS_H

#include "row.h"
#include "../bpf/filter.h"
#include "../route/owner.h"

/* The addresses in frontends, without the wildcards. */
struct address_filter frontend_filter SEC(".data.frontend_filter");

/* Turns the key into that of the wildcard address, which stands for any address of the node. */
INLINE void frontend_key_any(struct frontend_key *key)
{
	if (addr_is4(&key->addr))
		key->addr.w[3] = 0;
	else
		__builtin_memset(&key->addr, 0, sizeof(key->addr));
}

/* Finds the frontend for the port on any address of a node; a gives the family. */
INLINE struct frontend *frontend_wildcard(const struct addr *a, __be16 port, __u8 proto)
{
	struct frontend_key key = { .addr = *a, .port = port, .proto = proto };

	frontend_key_any(&key);
	return bpf_map_lookup_elem(&frontends, &key);
}

/* Whether some port of the address belongs to a Service. */
INLINE bool frontend_address(const struct addr *a)
{
	struct frontend_key key = { .addr = *a };

	return bpf_map_lookup_elem(&frontends, &key);
}

/* Whether some port of the address belongs to a Service because the address is a node's. */
INLINE bool node_ports_address(const struct addr *a)
{
	return frontend_wildcard(a, 0, 0) && node_ports_owner(a) != OWNER_OTHER;
}

/*
 * Whether the destination port, on an address of a node, may belong to a Service. Saves the lookup for all other ports.
 */
INLINE bool node_port_may_be(const struct packet *pkt)
{
	__u16 port = bpf_ntohs(pkt->dport);

	return own_ports || (port >= config.node_port_min && port <= config.node_port_max);
}

#endif
