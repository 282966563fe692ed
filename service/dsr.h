/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Direct server return: the backend's node replies to the client directly, with the address of the frontend. It learns
 * that address from an option in the flow's first packets: the SYN of TCP, each datagram of UDP. The option is removed
 * before the pod sees the packet.
 */
#ifndef MYELIN_DSR_H
#define MYELIN_DSR_H

#include "claim.h"
#include "service.h"
#include "../flow/enforce.h"

#define DSR_OPTION4 0x9a /* copied into fragments; class 0, a number that is not assigned */
#define DSR_OPTION6 0x1b /* skipped by nodes that don't know it (RFC 8200 4.2) */

/* An IPv4 option (RFC 791 3.1). */
struct dsr_option4 {
	__u8 type;
	__u8 length;
	__be16 port;
	__be32 addr;
};

/* A destination options header with one option (RFC 8200 4.6). */
struct dsr_option6 {
	__u8 nexthdr;
	__u8 words; /* length in units of 8 bytes, without the first */
	__u8 type;
	__u8 length;
	struct addr addr;
	__be16 port;
	__be16 pad; /* PadN without data */
} __attribute__((packed));

INLINE __u32 dsr_size(const struct packet *pkt)
{
	return pkt->family == 4 ? sizeof(struct dsr_option4) : sizeof(struct dsr_option6);
}

/* Fills in the option that names the frontend, which is the packet's destination. */
INLINE void dsr_option4_fill(struct dsr_option4 *o, const struct packet *pkt)
{
	o->type = DSR_OPTION4;
	o->length = sizeof(*o);
	o->port = pkt->dport;
	o->addr = pkt->dst.w[3];
}

/* The same for IPv6, in a header before the given one. */
INLINE void dsr_option6_fill(struct dsr_option6 *o, const struct packet *pkt, __u8 nexthdr)
{
	o->nexthdr = nexthdr;
	o->words = 2;
	o->type = DSR_OPTION6;
	o->length = 18;
	o->addr = pkt->dst;
	o->port = pkt->dport;
	o->pad = bpf_htons(0x0100);
}

/*
 * Updates header length, total length and checksum of the IPv4 header for `bytes` more bytes of options with the
 * checksum `sum`.
 */
INLINE void dsr_lengthen4(struct iphdr *ip, int bytes, __u64 sum)
{
	__u16 head = *(__u16 *)ip, length = ip->tot_len;

	ip->ihl += bytes >> 2;
	ip->tot_len = bpf_htons(bpf_ntohs(length) + bytes);
	ip->check = csum_update(ip->check, sum + (__u16)~head + *(__u16 *)ip + (__u16)~length + ip->tot_len);
}

INLINE bool dsr_header4(struct __sk_buff *skb, int bytes, __s64 sum)
{
	struct iphdr *ip = (void *)(long)skb->data + L3;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return false;
	dsr_lengthen4(ip, bytes, (__u32)sum);
	return true;
}

INLINE bool dsr_push4(struct __sk_buff *skb, struct cpu *c)
{
	struct iphdr *ip = (void *)(long)skb->data + L3;
	struct dsr_option4 o;

	dsr_option4_fill(&o, &c->pkt);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end || ip->ihl > 13)
		return false;
	return dsr_header4(skb, sizeof(o), bpf_csum_diff(NULL, 0, (__be32 *)&o, sizeof(o), 0)) &&
	       !bpf_skb_adjust_room(skb, sizeof(o), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO) &&
	       !bpf_skb_store_bytes(skb, L3 + sizeof(*ip), &o, sizeof(o), 0);
}

INLINE bool dsr_length6(struct __sk_buff *skb, int bytes, __u8 *nexthdr)
{
	struct ipv6hdr *ip = (void *)(long)skb->data + L3;
	__u8 was;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return false;
	was = ip->nexthdr;
	ip->nexthdr = *nexthdr;
	ip->payload_len = bpf_htons(bpf_ntohs(ip->payload_len) + bytes);
	*nexthdr = was;
	return true;
}

INLINE bool dsr_push6(struct __sk_buff *skb, struct cpu *c)
{
	struct dsr_option6 o;

	dsr_option6_fill(&o, &c->pkt, IPPROTO_DSTOPTS);
	if (!dsr_length6(skb, sizeof(o), &o.nexthdr) ||
	    bpf_skb_adjust_room(skb, sizeof(o), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return false;
	return !bpf_skb_store_bytes(skb, L3 + sizeof(struct ipv6hdr), &o, sizeof(o), 0);
}

/*
 * Adds the frontend's address and port, the packet's destination, to the packet as an option. Returns 1, or 0 if that
 * is impossible. Cost: per flow; for UDP, per packet.
 */
APART int dsr_push(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	return c && (c->pkt.family == 4 ? dsr_push4(skb, c) : dsr_push6(skb, c));
}

/* Reads the option, if it is the packet's first one, into c->to. */
INLINE bool dsr_read(struct __sk_buff *skb, struct cpu *c)
{
	struct dsr_option4 o4;
	struct dsr_option6 o6;

	if (c->pkt.family == 4) {
		if (!packet_load(skb, &c->pkt, L3 + sizeof(struct iphdr), &o4, sizeof(o4)) ||
		    o4.type != DSR_OPTION4 || o4.length != sizeof(o4))
			return false;
		addr_map4(&c->to.dst, o4.addr);
		c->to.dport = o4.port;
		return true;
	}
	if (!packet_load(skb, &c->pkt, L3 + sizeof(struct ipv6hdr), &o6, sizeof(o6)) ||
	    o6.type != DSR_OPTION6 || o6.length != 18)
		return false;
	c->to.dst = o6.addr;
	c->to.dport = o6.port;
	return true;
}

INLINE bool dsr_pull4(struct __sk_buff *skb)
{
	struct dsr_option4 o;

	if (bpf_skb_load_bytes(skb, L3 + sizeof(struct iphdr), &o, sizeof(o)))
		return false;
	return dsr_header4(skb, -(int)sizeof(o), bpf_csum_diff((__be32 *)&o, sizeof(o), NULL, 0, 0)) &&
	       !bpf_skb_adjust_room(skb, -(int)sizeof(o), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

INLINE bool dsr_pull6(struct __sk_buff *skb)
{
	__u8 nexthdr;

	if (bpf_skb_load_bytes(skb, L3 + sizeof(struct ipv6hdr), &nexthdr, 1))
		return false;
	return dsr_length6(skb, -(int)sizeof(struct dsr_option6), &nexthdr) &&
	       !bpf_skb_adjust_room(skb, -(int)sizeof(struct dsr_option6), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* Whether the packet may carry the option. Cost: per packet, if DSR is enabled. */
INLINE bool dsr_may_be(struct __sk_buff *skb, const struct packet *pkt)
{
	struct iphdr *ip = (void *)(long)skb->data + L3;

	if (pkt->family == 6)
		return pkt->proto == IPPROTO_DSTOPTS;
	return (void *)(ip + 1) <= (void *)(long)skb->data_end && ip->ihl >= 7;
}

/*
 * Whether the packet belongs to a flow that began without a Service. An option must not change the source address of
 * its replies.
 */
INLINE bool dsr_late(struct __sk_buff *skb, struct cpu *c, __u16 slot)
{
	if (c->pkt.proto == IPPROTO_TCP)
		return !flow_syn(&c->pkt) || connection_at(skb, slot, false) > CONNECTION_NONE;
	flow_key_own(c);
	return bpf_map_lookup_elem(&flows, &c->key);
}

/* Fills in c->nat_entry and its key from the packet and its option. */
INLINE void dsr_translation(struct cpu *c, __u32 service, __u16 stat)
{
	struct nat_entry *n = &c->nat_entry;

	__builtin_memset(n, 0, sizeof(*n));
	n->service = service;
	nat_tuple_set(&c->nat_key, &c->pkt.src, c->pkt.sport, &c->to.dst, c->to.dport, c->pkt.proto);
	n->backend = c->pkt.dst;
	n->backend_port = c->pkt.dport;
	n->flags = NAT_ENTRY_DSR;
	n->stat = stat;
	nat_entry_set_created(n);
	n->seen = clock_now();
}

/* Finds the packet's destination, a pod, in members. Returns NULL if it is not a backend for external clients. */
INLINE const __u32 *dsr_backend(const struct packet *pkt, __u32 service)
{
	struct member_key key = { .addr = pkt->dst, .service = service, .port = pkt->dport, .proto = pkt->proto };
	__u32 *member = bpf_map_lookup_elem(&members, &key);

	return member && *member & MEMBER_EXTERNAL ? member : NULL;
}

/*
 * Creates the NAT entry that gives the pod's replies the frontend's address, which is in c->to. Returns NEXT_FORWARD or
 * a drop reason. Cost: per flow.
 */
INLINE enum next dsr_keep(struct __sk_buff *skb, struct cpu *c, __u16 slot)
{
	struct nat_entry *t, *rival, *n = &c->nat_entry;
	const __u32 *member;
	struct frontend *f;

	/*
	 * The address must be a Service's, and the pod one of its backends: no other address may be put into a pod's
	 * replies.
	 */
	f = frontend_find(&c->to.dst, c->to.dport, c->pkt.proto, SCOPE_EXTERNAL);
	if (!f)
		return DROP_NO_SERVICE;
	member = dsr_backend(&c->pkt, f->service);
	if (!member)
		return DROP_DSR_UNTRUSTED;
	/* The node that chose the backend counts the flow and its requests, this one counts the replies. */
	dsr_translation(c, f->service, *member >> MEMBER_STAT_SHIFT);
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (t && nat_entry_same_tuple(t, n) && !nat_entry_replaceable(t, n, &c->pkt, PORT_FREE)) {
		t->seen = n->seen;
		return NEXT_FORWARD;
	}
	nat_reply_tuple(c, &c->nat_key, n);
	rival = nat_entry_rival(c);
	if (rival && !nat_entry_replaceable(rival, n, &c->pkt, PORT_FREE))
		return DROP_DSR_UNTRUSTED; /* the client uses one port for two Services */
	if (dsr_late(skb, c, slot))
		return DROP_DSR_UNTRUSTED;
	if (t)
		nat_entry_delete(c, &c->nat_key, t);
	c->reuse_backend = 0;
	return nat_entry_claim();
}

/*
 * Enforces the pod's policies on the packet, which is from the client to the pod. Returns NEXT_FORWARD or a drop
 * reason.
 */
INLINE enum next dsr_enforce(struct __sk_buff *skb, struct cpu *c, const struct endpoint *e)
{
	decide_wire_pod(c, e);
	return policy_enforced(&c->path) ? enforce(skb, c, flow_key_own(c)) : NEXT_FORWARD;
}

/*
 * Handles a packet from a client that another node forwarded to a pod with the option: creates the NAT entry and
 * removes the option. Returns NEXT_FORWARD, also without an option, or a drop reason.
 */
APART enum next dsr_accept(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	enum next outcome;

	if (!c)
		return NEXT_FORWARD;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	if (!e || e->flags & ENDPOINT_HOST || !dsr_read(skb, c) || l4_parse(skb, &c->pkt) ||
	    !proto_has_ports(c->pkt.proto))
		return NEXT_FORWARD;
	if (config.lb_dispatch && !config.tunnel && !c->unwrapped)
		return DROP_DSR_UNTRUSTED; /* nodes encapsulate such packets */
	outcome = dsr_enforce(skb, c, e) ?: dsr_keep(skb, c, e->slot);
	if (outcome)
		return outcome;
	endpoint_mark_services(e->slot);
	if (!(c->pkt.family == 4 ? dsr_pull4(skb) : dsr_pull6(skb)))
		return DROP_REWRITE;
	c->pkt.l4 -= dsr_size(&c->pkt);
	c->pkt.end -= dsr_size(&c->pkt);
	return NEXT_FORWARD;
}

#endif
