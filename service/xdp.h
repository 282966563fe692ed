/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Services in XDP. Packets of flows to backends on other nodes, and the replies to them, are sent by the wire's driver;
 * so is the first packet if the forwarding cache has its path. Packets for pods of this node, with options, fragments
 * or two VLAN tags, and packets to be refused are passed to from_wire, which uses the same maps.
 */
#ifndef MYELIN_XDP_H
#define MYELIN_XDP_H

#include "../bpf/xdp_port.h"
#include "translate.h"
#include "xdp_cross.h"
#include "xdp_decap.h"
#include "xdp_dsr.h"

/*
 * Devices that can send frames redirected from other devices, by ifindex; of a VLAN device, the device below it. Frames
 * for other devices are passed to tc.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} xdp_wires SEC(".maps");

/*
 * Set if frames are redirected by xdp_wires also when they leave by the wire on which they came in. A veth can send
 * them back (XDP_TX), but wakes its peer only if that has an XDP program (veth_xdp_flush).
 */
__u32 xdp_by_map;

/* Parses the addresses of an IP header without options. Returns the start of layer 4, or NULL. */
INLINE __be16 *xdp_parse_ip(void *data, void *end, struct packet *pkt)
{
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = data + L3;
	struct iphdr *ip4 = data + L3;

	if ((void *)(ip4 + 1) > end)
		return NULL;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && config.ipv4) {
		if (ip4->version != 4 || ip4->ihl != 5 || ip4->frag_off & bpf_htons(IP_MF | IP_OFFSET))
			return NULL;
		pkt->end = L3 + bpf_ntohs(ip4->tot_len);
		packet_read4(pkt, ip4);
		return (void *)(ip4 + 1);
	}
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || !config.ipv6 || (void *)(ip6 + 1) > end || ip6->version != 6)
		return NULL;
	pkt->end = L3 + sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	packet_read6(pkt, ip6);
	return (void *)(ip6 + 1);
}

/* Reads TCP's timestamp. Cost: per SYN and FIN. */
INLINE void xdp_read_timestamp(struct packet *pkt, const __be32 *word, const void *end)
{
	bool syn = pkt->tcp_flags & TCP_SYN;

	pkt->timestamp = 0;
	if ((void *)word + L4_TCP_TAIL_SYN <= end)
		pkt->timestamp = l4_tcp_timestamp(word, syn);
	else if (!syn && (void *)word + L4_TCP_TAIL_FIN <= end)
		pkt->timestamp = l4_tcp_timestamp(word, false);
}

/*
 * Parses TCP and UDP behind IP headers without options. Returns the frame's length, or 0 if the frame is something
 * else. Cost: per packet.
 */
INLINE __u32 xdp_parse(struct xdp_md *ctx, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 *l4;
	__u32 off;

	packet_reset(pkt, xdp_wire(ctx, c), HOOK_FROM_WIRE_XDP);
	l4 = xdp_parse_ip(data, end, pkt);
	if (!l4 || (void *)(l4 + 4) > end || pkt->end > end - data || address_own(&pkt->src))
		return 0;
	off = (void *)l4 - data;
	if (pkt->proto == IPPROTO_TCP) {
		if ((void *)l4 + L4_TCP_FLAGS + 1 > end || off + L4_TCP_SIZE > pkt->end)
			return 0;
		pkt->tcp_flags = *((__u8 *)l4 + L4_TCP_FLAGS);
		if (unlikely(pkt->tcp_flags & (TCP_SYN | TCP_FIN)))
			xdp_read_timestamp(pkt, (void *)l4 + L4_TCP_TAIL, end);
	} else if (pkt->proto != IPPROTO_UDP || off + L4_SIZE > pkt->end) {
		return 0;
	}
	pkt->sport = l4[0];
	pkt->dport = l4[1];
	return end - data;
}

/*
 * Whether the packet may be for a Service, or the reply to a client's packet from the node's address. Cost: per packet,
 * a load.
 */
INLINE bool xdp_may_be_service(const struct packet *pkt)
{
	return address_filter_has(&frontend_filter, &pkt->dst) || node_port_may_be(pkt);
}

/* The result of the NAT entry lookup. */
enum xdp_flow {
	XDP_KNOWN,
	XDP_UNKNOWN,
	XDP_LEFT, /* must be passed to from_wire */
};

/* The entry that counts the packet: one of the two. */
struct xdp_found {
	struct nat_entry *request;
	struct nat_reply *reply;
};

/* Whether from_wire may have to drop the packet because it is not encrypted. Cost: per packet with strict_ingress. */
INLINE bool xdp_came_plain(const struct packet *pkt)
{
	struct prefix *source = prefix_find(&pkt->src);

	return source && (source->encryption || source->flags & PREFIX_STRICT);
}

/*
 * Finds the packet's entry and sets c->to. Cost: per packet, one lookup; two for requests to node ports, one less for
 * SYNs.
 */
INLINE enum xdp_flow xdp_find(struct cpu *c, struct xdp_found *found)
{
	struct packet *pkt = &c->pkt;
	struct nat_entry *t;

	if (config.strict_ingress && xdp_came_plain(pkt))
		return XDP_LEFT;
	if (service_port(pkt)) {
		found->reply = nat_entry_reply(c, pkt);
		if (found->reply) {
			rewrite_answer(c);
			return XDP_KNOWN;
		}
	}
	if (!xdp_may_be_service(pkt))
		return XDP_LEFT;
	if (flow_syn(pkt)) {
		/* Most SYNs begin a flow. Where one does not, xdp_keep can't insert the entry. */
		nat_tuple_of(&c->nat_key, pkt);
		return XDP_UNKNOWN;
	}
	t = nat_entry_request(c, pkt);
	if (!t)
		return pkt->proto == IPPROTO_TCP && !config.direct ? XDP_LEFT : XDP_UNKNOWN;
	if (t->flags & (NAT_ENTRY_GONE | NAT_ENTRY_CLOSING))
		return XDP_LEFT;
	found->request = t;
	rewrite_request(c, t);
	return XDP_KNOWN;
}

/*
 * Finds the path of the rewritten packet. Returns NULL if there is none, or XDP can't send the packet along it. Cost:
 * per packet.
 */
INLINE const struct cached_path *xdp_path(const struct cpu *c, __u32 length)
{
	const struct addr *dst = c->to.encap ? &c->to.via : &c->to.dst;
	struct cached_path *p = path_find_to(dst, rewritten_ifindex(c));

	length += rewrite_grows(c);
	if (!p || p->path.action != PATH_WIRE || policy_enforced(&p->path) || c->pkt.ttl <= 1 ||
	    (p->path.mtu && length - ETH_HLEN > p->path.mtu))
		return NULL;
	return p;
}

/* Copies the entry to c->path and c->snat, for functions that are verified apart. */
INLINE void xdp_path_copy(struct cpu *c, const struct cached_path *p)
{
	c->path = p->path;
	c->snat = p->snat;
}

/*
 * Whether the packet is for a pod, or for the node itself and not for a node port. Cost: per flow, a load; a lookup for
 * the node's and its pods' addresses.
 */
INLINE bool xdp_is_own(const struct packet *pkt)
{
	struct endpoint *e;

	if (!address_filter_has(&own_filter, &pkt->dst))
		return false;
	e = bpf_map_lookup_elem(&endpoints, &pkt->dst);
	return e && (!(e->flags & ENDPOINT_HOST) || !node_port_may_be(pkt));
}

/* Whether an IPv6 packet has an IPv4-mapped address, as PARSED_MAPPED. Cost: per flow. */
INLINE bool xdp_is_mapped(const struct packet *pkt)
{
	return pkt->family == 6 && (addr_is4(&pkt->src) || addr_is4(&pkt->dst));
}

/*
 * Inserts c->nat_entry, with SNAT to the address of the wire by which the packet leaves unless the backend replies by
 * DSR, if the forwarding cache has the path to the backend and it is on another node. Returns 1 if c->path and c->to
 * are set, 0 if the packet is left to from_wire, or a drop reason.
 */
APART int xdp_keep(__u32 length)
{
	const struct cached_path *p;
	struct cpu *c = cpu_this();
	struct nat_entry *n;
	int outcome;

	if (!c)
		return 0;
	p = xdp_path(c, length);
	if (!p || addr_is_zero(&p->snat))
		return 0;
	xdp_path_copy(c, p);
	n = &c->nat_entry;
	if (unlikely(flood_stateless(c))) {
		if (flow_syn(&c->pkt) && bpf_map_lookup_elem(&nat_entries, &c->nat_key))
			return 0;
		service_stat_first(n->stat, length);
		rewrite_request(c, n);
		return 1;
	}
	if (!(n->flags & NAT_ENTRY_DSR)) {
		n->snat = c->snat;
		n->flags |= NAT_ENTRY_SNAT;
	}
	nat_entry_first(n, &c->pkt, length);
	c->reuse_backend = 0;
	c->nat_unchecked = flow_syn(&c->pkt);
	outcome = nat_entry_claim();
	c->nat_unchecked = false;
	if (outcome)
		return outcome == DROP_NEW_FLOW_RATE ? outcome : 0;
	share_take(SHARE_NAT_ENTRIES, 0, config.nat_entry_max);
	service_stat_first(n->stat, length);
	rewrite_request(c, n);
	quic_count(c, length);
	return 1;
}

/* Reads the start of a QUIC packet into c->quic, as quic_read does. Cost: per flow of UDP, if config.quic. */
INLINE void xdp_quic_read(struct xdp_md *ctx, struct cpu *c)
{
	const __u32 size = offsetof(struct quic_start, valid);
	__u32 off = L3 + 4 + (c->pkt.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	const void *q = (void *)(long)ctx->data + off;

	if (!config.quic)
		return;
	c->quic.valid = false;
	if (c->pkt.proto != IPPROTO_UDP || off + size > c->pkt.end || q + size > (void *)(long)ctx->data_end)
		return;
	__builtin_memcpy(&c->quic, q, size);
	c->quic.valid = bpf_ntohs(c->quic.length) >= L4_SIZE + QUIC_HEAD;
}

/*
 * Selects the backend of a new flow, as service_from_wire would. Returns 1 if c->nat_entry is set, 0 if the packet is
 * left to from_wire: it is for no Service, refused, or a TCP segment of an unknown flow whose backend hashing does not
 * select. Cost: per flow.
 */
APART int xdp_select(struct xdp_md *ctx)
{
	struct cpu *c = cpu_this();

	if (!c || xdp_is_own(&c->pkt) || xdp_is_mapped(&c->pkt) || addr_is_martian(&c->pkt.src))
		return 0;
	xdp_quic_read(ctx, c);
	if (service_select(SCOPE_EXTERNAL))
		return 0;
	return c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt) || c->nat_entry.consistent;
}

/*
 * Returns how the frame is sent to the device: XDP_TX, XDP_REDIRECT, or XDP_PASS if the device takes no frames from
 * XDP.
 */
INLINE int xdp_leave(const struct cpu *c, __u32 ifindex)
{
	if (ifindex == c->pkt.ifindex && !xdp_by_map)
		return XDP_TX;
	return bpf_redirect_map(&xdp_wires, ifindex, XDP_PASS);
}

/* Whether the rewritten packet has its family and length. Cost: per packet. */
INLINE bool xdp_is_plain(const struct cpu *c)
{
	return likely(!cross_family(c) && !(config.direct && (c->to.option || c->to.encap)));
}

/* Rewrites the packet with the addresses and ports in c->to, for c->path. Cost: per packet. */
INLINE enum xdp_written xdp_rewrite(struct xdp_md *ctx, struct cpu *c)
{
	if (xdp_is_plain(c))
		return xdp_write(ctx, c, &c->path);
	return cross_family(c) ? xdp_cross(ctx) : xdp_dsr(ctx);
}

/*
 * Counts a packet that was rewritten, or drops it if that failed. Returns the program's result. Cost: per
 * packet.
 */
INLINE int xdp_finish(struct xdp_md *ctx, struct cpu *c, enum xdp_written written, int verdict, __u32 length)
{
	if (written == XDP_UNCHANGED)
		return XDP_PASS;
	if (unlikely(written == XDP_BROKEN)) {
		count_bytes(c, cross_family(c) ? DROP_CROSS_FAMILY : DROP_REWRITE, length);
		return XDP_DROP;
	}
	count_bytes(c, FORWARD_WIRE, length);
	return verdict;
}

/* Inserts entries for a new flow and sends its first packet. Cost: per flow. */
INLINE int xdp_begin(struct xdp_md *ctx, struct cpu *c, __u32 length)
{
	int begun = xdp_select(ctx) ? xdp_keep(length) : 0, verdict;

	if (!begun)
		return XDP_PASS;
	if (unlikely(begun == DROP_NEW_FLOW_RATE)) {
		count_bytes(c, begun, length);
		return XDP_DROP;
	}
	verdict = xdp_leave(c, c->path.ifindex);
	if (verdict != XDP_PASS)
		verdict = xdp_finish(ctx, c, xdp_rewrite(ctx, c), verdict, length);
	if (verdict != XDP_PASS && verdict != XDP_DROP)
		trace_xdp(ctx, c, true);
	return verdict;
}

/* Sends a packet of a known flow. Cost: per packet. */
INLINE int xdp_forward(struct xdp_md *ctx, struct cpu *c, const struct xdp_found *found, __u32 length)
{
	const struct cached_path *p = xdp_path(c, length);
	enum xdp_written written;
	int verdict;

	if (!p)
		return XDP_PASS;
	verdict = xdp_leave(c, p->path.ifindex);
	if (verdict == XDP_PASS)
		return XDP_PASS;
	if (xdp_is_plain(c)) {
		c->path.ifindex = p->path.ifindex; /* for xdp_port_leave */
		written = xdp_write(ctx, c, &p->path);
	} else {
		xdp_path_copy(c, p);
		written = xdp_rewrite(ctx, c);
	}
	verdict = xdp_finish(ctx, c, written, verdict, length);
	if (verdict == XDP_PASS || verdict == XDP_DROP)
		return verdict;
	if (found->request)
		nat_entry_count(found->request, &c->pkt, length);
	else if (found->reply)
		nat_reply_count(found->reply, &c->pkt, length);
	trace_xdp(ctx, c, false);
	return verdict;
}

/* Translates and sends the packet. Cost: per packet. */
INLINE int xdp_translate(struct xdp_md *ctx, struct cpu *c, __u32 length)
{
	struct xdp_found found = {};

	switch (xdp_find(c, &found)) {
	case XDP_KNOWN:
		return xdp_forward(ctx, c, &found, length);
	case XDP_UNKNOWN:
		return xdp_begin(ctx, c, length);
	default:
		return unlikely(xdp_decap_may_be(&c->pkt)) ? xdp_decap(ctx) : XDP_PASS;
	}
}

#endif
