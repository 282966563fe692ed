/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The layer-4 header of a fragmented packet is in its first fragment only, and is stored for the later ones. Cost: per
 * fragment, and only where layer 4 matters.
 */
#ifndef MYELIN_FRAGMENT_H
#define MYELIN_FRAGMENT_H

#include "cpu.h"

/*
 * The key of a packet's entry. Each pod has 2^FRAGMENT_POD_BITS entries, and all wires together have
 * 2^FRAGMENT_WIRE_BITS, so that a flood of fragments evicts only entries of its own sender.
 */
struct fragment_key {
	__u32 ifindex; /* of the pod link; 0: a wire */
	__u32 index;   /* hash of the addresses and the identification */
};

#define FRAGMENT_POD_BITS 9
#define FRAGMENT_WIRE_BITS 12

/*
 * What receivers reassemble by, and layer 4 of the first fragment. IPv4 reassembles by protocol as well (RFC 791 3.2),
 * IPv6 does not (RFC 8200 4.5): its later fragments may have any next header.
 */
struct fragment_row {
	struct addr src;
	struct addr dst;
	__be32 id;
	__u32 key_proto; /* the protocol; IPv6: 0 */
	__be16 sport;
	__be16 dport;
	__u16 header; /* offset of the end of the layer-4 header in the fragmentable part, in bytes */
	__u8 proto;
	__u8 icmp_type;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fragment_key);
	__type(value, struct fragment_row);
} fragments SEC(".maps");

INLINE struct fragment_key fragment_key(const struct packet *pkt, __be32 id)
{
	bool pod = pkt->hook == HOOK_FROM_POD;
	/* In host byte order, consecutive identifications get indexes that are far apart. IPv4's has 16 bits. */
	__u64 hash = (addr_pair_hash(&pkt->src, &pkt->dst) +
		      (pkt->family == 4 ? bpf_ntohs(id) : bpf_ntohl(id))) * 0x94d049bb133111ebULL;
	struct fragment_key k = {
		.ifindex = pod ? pkt->ifindex : 0,
		.index = hash >> (64 - (pod ? FRAGMENT_POD_BITS : FRAGMENT_WIRE_BITS)),
	};

	return k;
}

INLINE __u32 fragment_proto(const struct packet *pkt)
{
	return pkt->family == 4 ? pkt->proto : 0;
}

/* Stores layer 4 of a first fragment. header: the offset of the header's end in the fragmentable part, in bytes. */
INLINE void fragment_store(const struct packet *pkt, __be32 id, __u16 header)
{
	struct fragment_key k = fragment_key(pkt, id);
	struct fragment_row v = {
		.src = pkt->src,
		.dst = pkt->dst,
		.id = id,
		.sport = pkt->sport,
		.dport = pkt->dport,
		.header = header,
		.proto = pkt->proto,
	};

	v.key_proto = fragment_proto(pkt);
	v.icmp_type = pkt->icmp_type;
	bpf_map_update_elem(&fragments, &k, &v, BPF_ANY);
}

/*
 * Fills in layer 4 of a later fragment. offset: where it is in the fragmentable part. Returns NEXT_FORWARD or a drop
 * reason.
 */
INLINE enum next fragment_find(struct packet *pkt, __be32 id, __u16 offset)
{
	struct fragment_key k = fragment_key(pkt, id);
	struct fragment_row *v = bpf_map_lookup_elem(&fragments, &k);

	if (!v || v->id != id || v->key_proto != fragment_proto(pkt) || !addr_equal(&v->src, &pkt->src) ||
	    !addr_equal(&v->dst, &pkt->dst))
		return DROP_FRAGMENT_FIRST_MISSING;
	if (offset < v->header)
		return DROP_FRAGMENT_OVERLAP; /* it would overwrite the first fragment's header (RFC 3128) */
	pkt->sport = v->sport;
	pkt->dport = v->dport;
	pkt->proto = v->proto;
	pkt->icmp_type = v->icmp_type;
	return NEXT_FORWARD;
}

#endif
