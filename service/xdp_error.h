/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about flows of Services in XDP: what service_error does in tc, if the error's receiver is beyond a wire.
 * Errors about fragments, packets with IP options or extension headers, SCTP, flows that cross families and flows to
 * backends outside the cluster are left to from_wire, as are redirects and parameter problems. Slow path.
 */
#ifndef MYELIN_XDP_ERROR_H
#define MYELIN_XDP_ERROR_H

#include "error.h"
#include "xdp.h"

/* Reads the quoted packet's ports: quote is the start of its layer 4. */
INLINE void xdp_error_ports(struct inner *in, const __u8 *quote, __u16 l4)
{
	const __be16 *port = (const __be16 *)quote;

	in->l4 = l4;
	in->sport = port[0];
	in->dport = port[1];
}

/* Parses the packet that an ICMP error quotes into c->inner. Returns false if the error is left to from_wire. */
INLINE bool xdp_error_parse4(const void *data, const void *end, struct cpu *c)
{
	const struct cross_error4 *e = data + L3;
	struct inner *in = &c->inner;

	if (c->pkt.proto != IPPROTO_ICMP || (void *)(e + 1) > end || L3 + sizeof(*e) > c->pkt.end)
		return false;
	if ((e->icmp.type != ICMP_DEST_UNREACH && e->icmp.type != ICMP_TIME_EXCEEDED) ||
	    *(const __u8 *)&e->about != IP_PLAIN || e->about.frag_off & bpf_htons(IP_MF | IP_OFFSET))
		return false;
	addr_map4(&in->src, e->about.saddr);
	addr_map4(&in->dst, e->about.daddr);
	in->proto = e->about.protocol;
	xdp_error_ports(in, e->quote, L3 + offsetof(struct cross_error4, quote));
	return true;
}

/* The same for ICMPv6. */
INLINE bool xdp_error_parse6(const void *data, const void *end, struct cpu *c)
{
	const struct cross_error6 *e = data + L3;
	struct inner *in = &c->inner;

	if (c->pkt.proto != IPPROTO_ICMPV6 || (void *)(e + 1) > end || L3 + sizeof(*e) > c->pkt.end)
		return false;
	if (e->icmp.type < ICMPV6_DEST_UNREACH || e->icmp.type > ICMPV6_TIME_EXCEED || e->about.version != 6)
		return false;
	__builtin_memcpy(&in->src, &e->about.saddr, sizeof(in->src));
	__builtin_memcpy(&in->dst, &e->about.daddr, sizeof(in->dst));
	in->proto = e->about.nexthdr;
	xdp_error_ports(in, e->quote, L3 + offsetof(struct cross_error6, quote));
	return true;
}

/*
 * Whether the ICMP packet, whose IP header xdp_parse has read, is an error about a TCP or UDP packet that its receiver
 * sent, a frontend's address or the node's. Sets c->inner.
 */
INLINE bool xdp_error_parse(struct xdp_md *ctx, struct cpu *c)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct packet *pkt = &c->pkt;

	if (pkt->end > end - data || address_own(&pkt->src) || xdp_is_mapped(pkt))
		return false;
	if (config.tunnel && !decide_plain_source(c, false))
		return false;
	if (!address_filter_has(&frontend_filter, &pkt->dst) && !address_filter_has(&own_filter, &pkt->dst))
		return false;
	if (!(pkt->family == 4 ? xdp_error_parse4(data, end, c) : xdp_error_parse6(data, end, c)))
		return false;
	return (c->inner.proto == IPPROTO_TCP || c->inner.proto == IPPROTO_UDP) &&
	       addr_equal(&c->inner.src, &pkt->dst);
}

/*
 * Trims the quote of the error as icmp_trim does. Returns XDP_WRITTEN also if that is not needed. Called with a
 * constant ipv4, as xdp_write_ip is.
 */
INLINE enum xdp_written xdp_error_trim(struct xdp_md *ctx, struct cpu *c, bool ipv4)
{
	__u32 off = L3 + (ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)), size = off + ICMP_TRIMMED;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct icmp_head *icmp;
	__u64 sum = 0;

	if (!config.policy || size >= c->pkt.end)
		return XDP_WRITTEN;
	if (bpf_xdp_adjust_tail(ctx, (int)size - (int)(end - data)))
		return XDP_UNCHANGED;
	data = (void *)(long)ctx->data;
	if (data + size > (void *)(long)ctx->data_end)
		return XDP_BROKEN;
	c->pkt.end = size;
	if (ipv4) {
		icmp_trim_head4(data + L3, size);
	} else {
		icmp_trim_head6(data + L3, size);
		sum = csum_words((const __u32 *)&c->pkt.src, 2 * sizeof(struct addr) / 4) + bpf_htonl(ICMP_TRIMMED) +
		      bpf_htonl(IPPROTO_ICMPV6);
	}
	icmp = data + off;
	icmp->checksum = 0;
	icmp->checksum = csum_fold(sum + csum_words((const __u32 *)icmp, ICMP_TRIMMED / 4));
	return XDP_WRITTEN;
}

/*
 * Writes the quoted packet's ports, and its checksum if the quote contains that. pseudo is the change of the quoted
 * addresses. Returns the change of what is written.
 */
INLINE __u64 xdp_error_l4(__u8 *quote, const void *end, const struct cpu *c, __u64 pseudo)
{
	const struct packet *about = &c->about;
	const struct inner *in = &c->inner;
	__u32 off = nat_l4_checksum(in->proto);
	__u64 diff = (__u64)(__u16)~in->sport + (__u16)~in->dport + about->sport + about->dport;
	__be16 *port = (__be16 *)quote;
	__u16 *check = (__u16 *)(quote + (in->proto == IPPROTO_TCP ? 16 : 6)), was;

	port[0] = about->sport;
	port[1] = about->dport;
	if (in->l4 + off + sizeof(was) > c->pkt.end || (void *)(check + 1) > end ||
	    (in->proto == IPPROTO_UDP && !*check))
		return diff;
	was = *check;
	*check = csum_update(was, pseudo + diff);
	return diff + (__u16)~was + *check;
}

INLINE bool xdp_error_write4(void *data, const void *end, const struct cpu *c, const struct rewrite *quote)
{
	struct cross_error4 *e = data + L3;
	__u64 diff;
	__u16 was;

	if ((void *)(e + 1) > end)
		return false;
	was = e->about.check;
	diff = xdp_write4(&e->about, quote, 0);
	diff += xdp_error_l4(e->quote, end, c, diff) + (__u16)~was + e->about.check;
	e->icmp.checksum = csum_update(e->icmp.checksum, diff);
	xdp_write4(&e->ip, &c->to, 1);
	return true;
}

INLINE bool xdp_error_write6(void *data, const void *end, const struct cpu *c, const struct rewrite *quote)
{
	struct cross_error6 *e = data + L3;
	__u64 diff;

	if ((void *)(e + 1) > end)
		return false;
	diff = xdp_write6(&e->about, quote, 0);
	diff += xdp_error_l4(e->quote, end, c, diff);
	diff += xdp_write6(&e->ip, &c->to, 1);
	e->icmp.checksum = csum_update(e->icmp.checksum, diff);
	return true;
}

/* Writes the error with the ends c->to, quoting the packet c->about, for c->path. */
INLINE enum xdp_written xdp_error_write(struct xdp_md *ctx, struct cpu *c)
{
	struct rewrite quote = { .src = c->about.src, .dst = c->about.dst };
	bool ipv4 = c->pkt.family == 4;
	enum xdp_written written;
	void *data, *end;

	written = ipv4 ? xdp_error_trim(ctx, c, true) : xdp_error_trim(ctx, c, false);
	if (written != XDP_WRITTEN)
		return written;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!(ipv4 ? xdp_error_write4(data, end, c, &quote) : xdp_error_write6(data, end, c, &quote)))
		return XDP_BROKEN;
	xdp_write_macs(data, &c->path);
	return XDP_WRITTEN;
}

/*
 * Translates an ICMP error, whose IP header xdp_parse has read into c->pkt, and sends it to the client or backend that
 * it is for. Returns the program's result: XDP_PASS if from_wire has to handle the packet.
 */
APART int xdp_error(struct xdp_md *ctx)
{
	const struct cached_path *path;
	struct cpu *c = cpu_this();
	enum xdp_written written;
	struct nat_entry *t;
	bool to_client;
	__u32 length;
	int verdict;

	if (!c || !xdp_error_parse(ctx, c))
		return XDP_PASS;
	t = error_find(c, &to_client);
	if (!t || error_is_cross_family(c, t))
		return XDP_PASS;
	error_rewrite(c, t, to_client);
	length = ctx->data_end - ctx->data;
	barrier_var(length); /* otherwise the compiler spills half of a pointer, which the verifier refuses */
	path = c->to.encap ? NULL : xdp_path(c, length);
	if (!path)
		return XDP_PASS;
	xdp_path_copy(c, path);
	verdict = xdp_leave(c, c->path.ifindex);
	if (verdict == XDP_PASS)
		return XDP_PASS;
	written = xdp_error_write(ctx, c);
	if (written == XDP_UNCHANGED)
		return XDP_PASS;
	count_bytes(c, written == XDP_BROKEN ? DROP_REWRITE : FORWARD_WIRE, length);
	return written == XDP_BROKEN ? XDP_DROP : verdict;
}

/*
 * Forwards packets of flows of Services, and ICMP errors about them. Returns the program's result. Cost: per packet.
 */
INLINE int xdp_receive(struct xdp_md *ctx, struct cpu *c)
{
	__u32 length = xdp_parse(ctx, c);

	if (likely(length))
		return xdp_translate(ctx, c, length);
	return proto_is_icmp(c->pkt.proto) ? xdp_error(ctx) : XDP_PASS;
}

#endif
