/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Backends selected by QUIC connection IDs, so that a connection stays with its backend when the client's address or
 * port changes (RFC 9000 9), and when another node receives its packets. Servers choose the connection IDs that clients
 * send: an octet, the server ID, and a nonce, not encrypted (draft-ietf-quic-load-balancers). Only packets without a
 * NAT entry are looked at.
 */
#ifndef MYELIN_QUIC_H
#define MYELIN_QUIC_H

#include "service.h"
#include "../drop/drop.h"

#define QUIC_LONG 0x80      /* in the first octet: a long header, with version and length of the connection ID */
#define QUIC_UNROUTABLE 0xe0 /* in the connection ID's first octet: a server without a configuration made it */
#define QUIC_ID_MAX 8       /* octets of a server ID */
#define QUIC_V1 0x00000001
#define QUIC_V2 0x6b3343cf  /* RFC 9369 */

/*
 * Reads the start of the packet, unless it is a later fragment, into c->quic. Cost: per flow of UDP, a copy of 19 bytes
 * if config.quic.
 */
INLINE void quic_read(struct __sk_buff *skb, struct cpu *c)
{
	const struct packet *pkt = &c->pkt;
	struct quic_start *q = &c->quic;

	if (!config.quic)
		return;
	q->valid = pkt->proto == IPPROTO_UDP && pkt->fragment != FRAGMENT_LATER &&
		   packet_load(skb, pkt, pkt->l4 + 4, q, offsetof(struct quic_start, valid)) &&
		   bpf_ntohs(q->length) >= L4_SIZE + QUIC_HEAD;
}

/*
 * Whether the packet with a long header may begin a connection: an Initial or 0-RTT packet. Until the server has
 * replied, the connection ID is random. Later ones are the server's, but the flow has a NAT entry by then.
 */
INLINE bool quic_begins(const __u8 *head)
{
	__u32 version = (__u32)head[1] << 24 | head[2] << 16 | head[3] << 8 | head[4];
	__u8 type = head[0] >> 4 & 3;

	return (version == QUIC_V1 && type <= 1) || (version == QUIC_V2 && (type == 1 || type == 2));
}

/* Reads the server ID of `octets` octets from the packet's connection ID. Returns false if there is none. */
INLINE bool quic_server_id(const struct quic_start *q, __u32 octets, __u64 *id)
{
	const __u8 *cid = q->head + 1;
	__u64 n = 0;
	int i;

	if (!q->valid)
		return false;
	if (q->head[0] & QUIC_LONG) {
		if (quic_begins(q->head) || q->head[5] <= octets)
			return false;
		cid = q->head + 6;
	}
	if (cid[0] >= QUIC_UNROUTABLE)
		return false;
	for (i = 1; i <= QUIC_ID_MAX; i++)
		n = n << 8 | cid[i];
	*id = n >> ((QUIC_ID_MAX - octets) * 8 & 63);
	return true;
}

/*
 * Finds the backend that the packet's connection ID names, also one that gets no new connections; with traffic policy
 * Local only on this node. Returns its number, 0 if there is none.
 */
INLINE __u32 quic_choose(const struct cpu *c, const struct frontend *f, __u32 scope, struct backend **b)
{
	struct quic_server_key key = { .service = f->service, .port = f->port, .family = c->pkt.family };
	__u32 local = scope == SCOPE_INTERNAL ? FRONTEND_LOCAL_INTERNAL : FRONTEND_LOCAL_EXTERNAL;
	__u32 octets = (f->flags & FRONTEND_QUIC) / (FRONTEND_QUIC & -FRONTEND_QUIC), *id;

	if (!octets || !quic_server_id(&c->quic, octets, &key.id))
		return 0;
	id = bpf_map_lookup_elem(&quic_servers, &key);
	if (!id)
		return 0;
	*b = bpf_map_lookup_elem(&backends, id);
	return *b && (!(f->flags & local) || address_own(&(*b)->addr)) ? *id : 0;
}

/* Counts the first packet of a flow whose backend its connection ID selected. */
INLINE void quic_count(struct cpu *c, __u32 length)
{
	if (config.quic && c->quic_selected)
		count_bytes(c, FORWARD_QUIC, length);
}

#endif
