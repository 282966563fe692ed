/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Frontend lookup, and backend selection for new flows. Cost: per flow. */
#ifndef MYELIN_SERVICE_H
#define MYELIN_SERVICE_H

#include "address.h"

/* Slots to try: a backend may just have been deleted. */
#define SERVICE_ATTEMPTS 4

/* Finds the frontend for the address and port, NULL if there is none in the scope. */
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
	__u32 slot = at % MAGLEV_SLOTS;

	barrier_var(slot); /* the verifier derives bounds from a comparison, but not from a remainder */
	return row && slot < MAGLEV_SLOTS ? row->backend[slot] : 0;
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

/*
 * Finds the backend in the slot, or in one of the next slots if its backend is gone. Returns its number, 0 if there is
 * none.
 */
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

/* Returns a hash of the flow, the same on all nodes. */
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

/*
 * Chooses a backend by the Service's algorithm; hash is that of the flow, or a random number. Returns its number, 0 if
 * there is none.
 */
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

/* Sets the client's affinity key: the pod or host with the network namespace cookie has one backend per family. */
INLINE void client_key(struct addr *client, __u64 cookie, bool ipv6)
{
	client->d[0] = cookie;
	client->d[1] = ipv6;
}

/*
 * Finds the client's last backend, if the affinity has not timed out. The agent deletes the affinities of backends that
 * must not get new flows.
 */
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

/* Chooses a backend for a new flow of the client. Returns its number, 0 if there is none. */
INLINE __u32 service_choose(const struct frontend *f, const struct addr *client, __u32 scope, __u32 hash,
			    struct backend **b)
{
	struct affinity_key key = { .client = *client, .service = f->service, .port = f->port };
	const struct backend_set *set = scope == SCOPE_INTERNAL ? &f->set[SCOPE_INTERNAL] : &f->set[SCOPE_EXTERNAL];
	struct affinity entry = {};

	if (f->affinity && (entry.backend = affinity_find(&key, f, b)))
		return entry.backend;
	entry.backend = backend_choose(f, set, hash, b);
	if (!entry.backend)
		return 0;
	if (f->affinity) {
		entry.seen = clock_now();
		bpf_map_update_elem(&affinities, &key, &entry, BPF_ANY);
	}
	return entry.backend;
}

#endif
