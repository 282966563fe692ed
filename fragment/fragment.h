/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of a fragmented packet are in its first fragment only: they are kept for the later ones. Cost: per fragment, and only where ports matter. */
#ifndef MYELIN_FRAGMENT_H
#define MYELIN_FRAGMENT_H

#include "../bpf/packet.h"
#include "../drop/drop.h"

struct fragment_key {
	struct addr src;
	struct addr dst;
	__be32 id;
	__u32 proto;
};

struct fragment_ports {
	__be16 sport;
	__be16 dport;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fragment_key);
	__type(value, struct fragment_ports);
} fragments SEC(".maps");

INLINE void fragment_keep(const struct packet *pkt, __be32 id)
{
	struct fragment_key k = { .src = pkt->src, .dst = pkt->dst, .id = id, .proto = pkt->proto };
	struct fragment_ports v = { .sport = pkt->sport, .dport = pkt->dport };

	bpf_map_update_elem(&fragments, &k, &v, BPF_ANY);
}

INLINE int fragment_find(struct packet *pkt, __be32 id)
{
	struct fragment_key k = { .src = pkt->src, .dst = pkt->dst, .id = id, .proto = pkt->proto };
	struct fragment_ports *v = bpf_map_lookup_elem(&fragments, &k);

	if (!v)
		return DROP_FRAGMENT_FIRST_MISSING;
	pkt->sport = v->sport;
	pkt->dport = v->dport;
	return 0;
}

#endif
