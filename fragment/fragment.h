/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layer 4 of a fragmented packet is in its first fragment only: it is remembered for the later ones. Cost: per fragment, and only where layer 4 matters.
 */
#ifndef MYELIN_FRAGMENT_H
#define MYELIN_FRAGMENT_H

#include "../bpf/packet.h"
#include "../drop/drop.h"

/* What receivers reassemble by: IPv4 by protocol as well (RFC 791 3.2), IPv6 not (RFC 8200 4.5), whose later fragments may claim any next header. */
struct fragment_key {
	struct addr src;
	struct addr dst;
	__be32 id;
	__u32 proto;   /* IPv6: 0 */
	__u32 ifindex; /* of the pod link, so that no pod writes what another pod's fragments are; 0: a wire */
	__u32 pad;
};

struct fragment_l4 {
	__be16 sport;
	__be16 dport;
	__u16 header; /* bytes of the fragmentable part up to the end of the layer-4 header */
	__u8 proto;
	__u8 icmp_type;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fragment_key);
	__type(value, struct fragment_l4);
} fragments SEC(".maps");

INLINE struct fragment_key fragment_key(const struct packet *pkt, __be32 id)
{
	struct fragment_key k = { .src = pkt->src, .dst = pkt->dst, .id = id };

	if (pkt->family == 4)
		k.proto = pkt->proto;
	if (pkt->hook == HOOK_FROM_POD)
		k.ifindex = pkt->ifindex;
	return k;
}

/* Remembers the first fragment's layer 4, whose header ends at the given byte of the fragmentable part. */
INLINE void fragment_keep(const struct packet *pkt, __be32 id, __u16 header)
{
	struct fragment_key k = fragment_key(pkt, id);
	struct fragment_l4 v = { .sport = pkt->sport, .dport = pkt->dport, .header = header, .proto = pkt->proto, .icmp_type = pkt->icmp_type };

	bpf_map_update_elem(&fragments, &k, &v, BPF_ANY);
}

/* Fills in layer 4 of a later fragment, at the given offset of the fragmentable part. Returns 0 or a drop reason. */
INLINE int fragment_find(struct packet *pkt, __be32 id, __u16 offset)
{
	struct fragment_key k = fragment_key(pkt, id);
	struct fragment_l4 *v = bpf_map_lookup_elem(&fragments, &k);

	if (!v)
		return DROP_FRAGMENT_FIRST_MISSING;
	if (offset < v->header)
		return DROP_FRAGMENT_OVERLAP; /* it would write another header over the first fragment's (RFC 3128) */
	pkt->sport = v->sport;
	pkt->dport = v->dport;
	pkt->proto = v->proto;
	pkt->icmp_type = v->icmp_type;
	return 0;
}

#endif
