/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding a frontend, and choosing a backend for a new flow. Cost: per flow. */
#ifndef MYELIN_SERVICE_H
#define MYELIN_SERVICE_H

#include "address.h"

/* The next choice is taken where a backend has just gone. */
#define SERVICE_ATTEMPTS 4

/* What serves the address, NULL if it is no Service's in the scope. */
INLINE struct frontend *frontend_find(const struct addr *a, __be16 port, __u8 proto, __u32 scope)
{
	struct frontend_key key = { .addr = *a, .port = port, .proto = proto };
	__u32 flag = scope == SCOPE_INTERNAL ? FRONTEND_INTERNAL : FRONTEND_EXTERNAL;
	struct frontend *f = bpf_map_lookup_elem(&frontends, &key);
	int owner;

	if (f)
		return f->flags & flag ? f : NULL;
	f = frontend_wildcard(a, port, proto);
	if (!f || !(f->flags & flag))
		return NULL;
	owner = node_ports_owner(a);
	if (owner == OWNER_NODE)
		return f;
	return owner == OWNER_PEER && !(f->flags & FRONTEND_THIS_NODE) ? f : NULL;
}

INLINE __u32 maglev_slot_at(const struct backend_set *set, __u32 at)
{
	struct backend_slots_key key = { .set = set->id, .row = at / MAGLEV_SLOTS };
	struct maglev_row *row = bpf_map_lookup_elem(&maglev_tables, &key);
	__u32 place = at % MAGLEV_SLOTS;

	barrier_var(place); /* the verifier knows no bounds of a remainder, and takes those of a comparison */
	return row && place < MAGLEV_SLOTS ? row->backend[place] : 0;
}

INLINE __u32 backend_slot_at(const struct backend_set *set, __u32 at)
{
	struct backend_slots_key key = { .set = set->id, .row = at / BACKEND_SLOTS };
	struct backend_slots_row *row;

	if (set->id & SET_TABLE)
		return maglev_slot_at(set, at);
	row = bpf_map_lookup_elem(&backend_slots, &key);
	return row ? row->backend[at % BACKEND_SLOTS] : 0;
}

/* The backend at a place of the set, or at one of the next. Returns its number, 0 if there is none. */
INLINE __u32 backend_at(const struct backend_set *set, __u32 at, struct backend **b)
{
	__u32 id, i;

	if (!set->count)
		return 0;
	for (i = 0; i < SERVICE_ATTEMPTS; i++) {
		id = backend_slot_at(set, (at + i) % set->count);
		*b = bpf_map_lookup_elem(&backends, &id);
		if (*b)
			return id;
	}
	return 0;
}

/* The flow's, the same on every node that knows the same backends. */
INLINE __u32 service_hash(const struct packet *pkt)
{
	__u64 h = path_hash(pkt, false) + ((__u32)pkt->dport << 16 | pkt->sport) * 0x94d049bb133111ebULL;

	return (h ^ h >> 29) * 0x9e3779b97f4a7c15ULL >> 32;
}

INLINE __u32 backend_load(__u32 id)
{
	__u32 *n = bpf_map_lookup_elem(&loads, &id);

	return n ? *n : 0;
}

/* A backend as the Service chooses; hash is the flow's, or a random number. Returns its number, 0 if there is none. */
INLINE __u32 backend_choose(const struct frontend *f, const struct backend_set *set, __u32 hash, struct backend **b)
{
	struct backend *other = NULL;
	__u32 id, second;

	id = backend_at(set, hash, b);
	if (!id || !(f->flags & FRONTEND_LEAST))
		return id;
	second = backend_at(set, bpf_get_prandom_u32(), &other);
	if (!second || backend_load(id) <= backend_load(second))
		return id;
	*b = other;
	return second;
}

/* The name of the pod or host with the network namespace's cookie, of whose connections those of one family have one backend. */
INLINE void client_key(struct addr *client, __u64 cookie, bool ipv6)
{
	client->d[0] = cookie;
	client->d[1] = ipv6;
}

/* The backend that the client had, if its time is not over. The agent deletes the rows of backends that may get no new flows. */
INLINE __u32 affinity_find(const struct affinity_key *key, const struct frontend *f, struct backend **b)
{
	struct affinity *a = bpf_map_lookup_elem(&affinities, key);
	__u32 now = clock_now();

	if (!a || clock_before(a->seen + f->affinity * config.hz, now))
		return 0;
	a->seen = now;
	*b = bpf_map_lookup_elem(&backends, &a->backend);
	return *b ? a->backend : 0;
}

/* A backend for a new flow of the client. Returns its number, 0 if there is none. */
INLINE __u32 service_choose(const struct frontend *f, const struct addr *client, __u32 scope, __u32 hash, struct backend **b)
{
	struct affinity_key key = { .client = *client, .service = f->service, .port = f->port };
	const struct backend_set *set = scope == SCOPE_INTERNAL ? &f->set[SCOPE_INTERNAL] : &f->set[SCOPE_EXTERNAL];
	struct affinity kept = {};

	if (f->affinity && (kept.backend = affinity_find(&key, f, b)))
		return kept.backend;
	kept.backend = backend_choose(f, set, hash, b);
	if (!kept.backend)
		return 0;
	if (f->affinity) {
		kept.seen = clock_now();
		bpf_map_update_elem(&affinities, &key, &kept, BPF_ANY);
	}
	return kept.backend;
}

#endif
