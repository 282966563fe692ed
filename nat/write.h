/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewriting an address and a port of a packet, and of the packet that an ICMP error quotes. */
#ifndef MYELIN_NAT_WRITE_H
#define MYELIN_NAT_WRITE_H

#include "sctp.h"
#include "../bpf/inner.h"

/* Offset and size of an address in the packet, by family. */
#define NAT_ADDR(pkt, source) (L3 + ((pkt)->family == 4 ? ((source) ? 12 : 16) : ((source) ? 8 : 24)))
#define NAT_ADDR_SIZE(pkt) ((pkt)->family == 4 ? 4 : 16)

/* Whether the packet's flow can be translated. Of ICMP, only echoes have an identifier that distinguishes flows. */
INLINE bool nat_supports(const struct packet *pkt)
{
	return proto_has_ports(pkt->proto) ||
	       (proto_is_icmp(pkt->proto) && (pkt->fragment == FRAGMENT_LATER || l4_is_echo(pkt)));
}

/* Returns the offset of the checksum in the layer-4 header; 0: none that bpf_l4_csum_replace can update. */
INLINE __u32 nat_l4_checksum(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return 16;
	case IPPROTO_UDP:
		return 6;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 2;
	default:
		return 0;
	}
}

/* Returns the offset of the port in the layer-4 header; for ICMP echo, that of the identifier. */
INLINE __u32 nat_l4_port(__u8 proto, bool source)
{
	if (proto_is_icmp(proto))
		return 4;
	return source ? 0 : 2;
}

INLINE bool nat_write_port(struct __sk_buff *skb, const struct packet *pkt, bool source, __be16 from, __be16 to)
{
	__u32 check = nat_l4_checksum(pkt->proto);
	__u64 flags = sizeof(from) | (pkt->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);

	if (from == to)
		return true;
	if (pkt->proto == IPPROTO_SCTP)
		return pkt->fragment == FRAGMENT_NONE &&
		       !sctp_write_port(skb, pkt->l4, nat_l4_port(pkt->proto, source), from, to);
	return !bpf_l4_csum_replace(skb, pkt->l4 + check, from, to, flags) &&
	       !bpf_skb_store_bytes(skb, pkt->l4 + nat_l4_port(pkt->proto, source), &to, sizeof(to), 0);
}

/*
 * Returns the drop reason of a packet whose ports can't be rewritten. SCTP's checksum needs the length of the whole
 * packet, which a fragment does not have.
 */
INLINE enum next nat_refusal(const struct packet *pkt)
{
	return pkt->proto == IPPROTO_SCTP && pkt->fragment ? DROP_SCTP_FRAGMENT : DROP_REWRITE;
}

/*
 * Rewrites the packet's source or destination address and port, and updates all checksums. Returns false if the kernel
 * refuses. Cost: per packet of a translated flow.
 */
INLINE bool nat_write(struct __sk_buff *skb, const struct packet *pkt, bool source, const struct addr *to, __be16 port)
{
	const struct addr *from = source ? &pkt->src : &pkt->dst;
	__be16 old = source ? pkt->sport : pkt->dport;
	__u32 check = nat_l4_checksum(pkt->proto);
	__u64 flags = BPF_F_PSEUDO_HDR | (pkt->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
	__s64 diff;

	if (pkt->fragment != FRAGMENT_LATER && !nat_write_port(skb, pkt, source, old, port))
		return false;
	if (pkt->family == 4) {
		diff = bpf_csum_diff((__be32 *)&from->w[3], 4, (__be32 *)&to->w[3], 4, 0);
		if (bpf_skb_store_bytes(skb, NAT_ADDR(pkt, source), &to->w[3], 4, 0) ||
		    bpf_l3_csum_replace(skb, L3 + offsetof(struct iphdr, check), 0, diff, 0))
			return false;
	} else {
		diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);
		if (bpf_skb_store_bytes(skb, NAT_ADDR(pkt, source), to, 16, 0))
			return false;
	}
	if (!check || pkt->proto == IPPROTO_ICMP || pkt->fragment == FRAGMENT_LATER)
		return true;
	if (bpf_l4_csum_replace(skb, pkt->l4 + check, 0, diff, flags))
		return false;
	/*
	 * With CHECKSUM_COMPLETE the helper adjusts skb->csum as for IPv4, whose header always sums up to zero. In IPv6
	 * the changes of address and checksum cancel out, so that the adjustment must be reverted.
	 */
	if (pkt->family == 6)
		bpf_csum_update(skb, diff);
	return true;
}

/*
 * Updates the layer-4 checksum of the quoted packet, if the quote contains it, and the error's own (at outer), which
 * covers it.
 */
INLINE bool inner_checksum(struct __sk_buff *skb, const struct packet *pkt, const struct inner *in, __u32 outer,
			   __s64 diff, __be16 old, __be16 port)
{
	__u32 check = nat_l4_checksum(in->proto), at = in->l4 + check;
	__u16 before, after;

	if (!check || !packet_load(skb, pkt, at, &before, 2) || (in->proto == IPPROTO_UDP && !before))
		return true;
	if (in->proto != IPPROTO_ICMP && bpf_l4_csum_replace(skb, at, 0, diff, 0))
		return false;
	if (bpf_l4_csum_replace(skb, at, old, port, 2) || bpf_skb_load_bytes(skb, at, &after, 2))
		return false;
	return !bpf_l4_csum_replace(skb, outer, before, after, 2);
}

/*
 * Rewrites one end of the quoted packet to in->to and in->port, and updates all checksums. Returns NEXT_FORWARD or a
 * drop reason. Slow path.
 */
APART enum next inner_write(struct __sk_buff *skb, __u32 source)
{
	struct cpu *c = cpu_this();
	const struct addr *from;
	__be16 old, port;
	struct inner *in;
	__u32 at, check;
	__s64 diff;

	if (!c)
		return DROP_REWRITE;
	in = &c->inner;
	from = source ? &in->src : &in->dst;
	old = source ? in->sport : in->dport;
	port = in->port;
	check = c->pkt.l4 + 2;
	at = in->l3 + (c->pkt.family == 4 ? (source ? 12 : 16) : (source ? 8 : 24));
	if (c->pkt.family == 4) {
		/* Address and header checksum change by opposite amounts, which cancel out in the error's checksum. */
		diff = bpf_csum_diff((__be32 *)&from->w[3], 4, &in->to.w[3], 4, 0);
		if (bpf_skb_store_bytes(skb, at, &in->to.w[3], 4, 0) ||
		    bpf_l3_csum_replace(skb, in->l3 + offsetof(struct iphdr, check), 0, diff, 0))
			return DROP_REWRITE;
	} else {
		diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)&in->to, 16, 0);
		if (bpf_skb_store_bytes(skb, at, &in->to, 16, 0) || bpf_l4_csum_replace(skb, check, 0, diff, 0))
			return DROP_REWRITE;
	}
	if (!inner_checksum(skb, &c->pkt, in, check, diff, old, port))
		return DROP_REWRITE;
	if (old == port)
		return NEXT_FORWARD;
	if (bpf_skb_store_bytes(skb, in->l4 + nat_l4_port(in->proto, source), &port, 2, 0) ||
	    bpf_l4_csum_replace(skb, check, old, port, 2))
		return DROP_REWRITE;
	return NEXT_FORWARD;
}

#endif
