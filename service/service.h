/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding a frontend, and choosing a backend for a new flow. Cost: per flow. */
#ifndef MYELIN_SERVICE_H
#define MYELIN_SERVICE_H

#include "row.h"
#include "../route/path.h"

/* The next choice is taken where a backend has just gone. */
#define SERVICE_ATTEMPTS 4

enum address_owner {
	OWNER_OTHER,
	OWNER_NODE, /* this node's own, loopback included */
	OWNER_PEER, /* another node's */
};

INLINE int address_owner(const struct addr *a)
{
	struct endpoint *e;
	struct prefix *p;

	if (addr_is4(a) ? a->b[12] == 127 : (!a->d[0] && a->d[1] == bpf_cpu_to_be64(1)))
		return OWNER_NODE;
	e = bpf_map_lookup_elem(&endpoints, a);
	if (e)
		return e->flags & ENDPOINT_HOST ? OWNER_NODE : OWNER_OTHER;
	p = prefix_find(a);
	return p && p->flags & PREFIX_NODE ? OWNER_PEER : OWNER_OTHER;
}

/* What serves the address, NULL if it is no Service's in the scope. */
INLINE struct frontend *frontend_find(const struct addr *a, __be16 port, __u8 proto, __u32 scope)
{
	struct frontend_key key = { .addr = *a, .port = port, .proto = proto };
	__u32 flag = scope == SCOPE_INTERNAL ? FRONTEND_INTERNAL : FRONTEND_EXTERNAL;
	struct frontend *f = bpf_map_lookup_elem(&frontends, &key);
	int owner;

	if (f)
		return f->flags & flag ? f : NULL;
	if (addr_is4(a))
		key.addr.w[3] = 0;
	else
		__builtin_memset(&key.addr, 0, sizeof(key.addr));
	f = bpf_map_lookup_elem(&frontends, &key);
	if (!f || !(f->flags & flag))
		return NULL;
	owner = address_owner(a);
	if (owner == OWNER_NODE)
		return f;
	return owner == OWNER_PEER && !(f->flags & FRONTEND_THIS_NODE) ? f : NULL;
}

INLINE __u32 choices_at(const struct backend_set *set, __u32 at)
{
	struct choices_key key = { .set = set->id, .row = at / CHOICES };
	struct choice_row *row = bpf_map_lookup_elem(&choices, &key);

	return row ? row->backend[at % CHOICES] : 0;
}

/* A backend at random. Returns its number, 0 if there is none. */
INLINE __u32 backend_random(const struct backend_set *set, struct backend **b)
{
	__u32 id, i, at = bpf_get_prandom_u32();

	if (!set->count)
		return 0;
	for (i = 0; i < SERVICE_ATTEMPTS; i++) {
		id = choices_at(set, (at + i) % set->count);
		*b = bpf_map_lookup_elem(&backends, &id);
		if (*b)
			return id;
	}
	return 0;
}

/* The backend that the client had, if its time is not over. The agent deletes the rows of backends that may get no new flows. */
INLINE struct backend *affinity_find(const struct affinity_key *key, const struct frontend *f)
{
	struct affinity *a = bpf_map_lookup_elem(&affinities, key);
	__u32 now = clock_now();

	if (!a || clock_before(a->seen + f->affinity * config.hz, now))
		return NULL;
	a->seen = now;
	return bpf_map_lookup_elem(&backends, &a->backend);
}

/* A backend for a new flow of the client, NULL if there is none. */
INLINE struct backend *service_choose(const struct frontend *f, const struct addr *client, __u32 scope)
{
	struct affinity_key key = { .client = *client, .service = f->service, .port = f->port };
	const struct backend_set *set = scope == SCOPE_INTERNAL ? &f->set[SCOPE_INTERNAL] : &f->set[SCOPE_EXTERNAL];
	struct affinity kept = {};
	struct backend *b = NULL;

	if (f->affinity && (b = affinity_find(&key, f)))
		return b;
	kept.backend = backend_random(set, &b);
	if (!kept.backend)
		return NULL;
	if (f->affinity) {
		kept.seen = clock_now();
		bpf_map_update_elem(&affinities, &key, &kept, BPF_ANY);
	}
	return b;
}

#endif
