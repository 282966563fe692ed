/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors about packets that were translated: they follow the flow, and quote what their receiver sent. Slow path. */
#ifndef MYELIN_SERVICE_ERROR_H
#define MYELIN_SERVICE_ERROR_H

#include "cross_error.h"
#include "send.h"

/* Makes the CPU's about the answer to the packet that its ICMP error quotes. */
INLINE void about_reply(struct cpu *c)
{
	struct packet *about = &c->about;
	struct inner *in = &c->inner;

	about->src = in->dst;
	about->dst = in->src;
	about->sport = in->dport;
	about->dport = in->sport;
	about->proto = in->proto;
	about->family = c->pkt.family;
}

/* One end of the quoted packet, and all checksums over it. Returns 0 or a drop reason. */
INLINE int quote_write(struct __sk_buff *skb, struct cpu *c, bool source, const struct addr *to, __be16 port)
{
	c->inner.to = *to;
	c->inner.port = port;
	return inner_write(skb, source);
}

/* The error is about a request, on its way to the backend: the client sent that to the frontend. Returns 0 or a drop reason. */
INLINE int error_to_client(struct __sk_buff *skb, struct cpu *c, const struct nat_entry *t)
{
	int outcome = quote_write(skb, c, true, &t->client, t->client_port);

	c->to.dst = t->client;
	c->to.src = addr_equal(&c->pkt.src, &t->backend) ? t->frontend : c->pkt.src;
	return outcome ? outcome : quote_write(skb, c, false, &t->frontend, t->frontend_port);
}

/* The error is about an answer, on its way to the client: the backend sent that, to whom it takes for the client. Returns 0 or a drop reason. */
INLINE int error_to_backend(struct __sk_buff *skb, struct cpu *c, const struct nat_entry *t)
{
	bool snat = t->flags & NAT_ENTRY_SNAT;
	int outcome = quote_write(skb, c, true, &t->backend, t->backend_port);

	c->to.dst = t->backend;
	c->to.src = snat ? t->snat : c->pkt.src;
	if (outcome || !snat)
		return outcome;
	return quote_write(skb, c, false, &t->snat, c->nat_key.port);
}

/* Whether the flow's two sides are of different families. */
INLINE bool error_is_cross_family(const struct nat_entry *t)
{
	return addr_is4(&t->client) != addr_is4(&t->backend);
}

/* The error is about a packet to the backend (to_client), or about its answer, which the receiver knows in the other family. Returns 0 or a drop reason. */
INLINE int error_cross_family(struct __sk_buff *skb, struct cpu *c, const struct nat_entry *t, bool to_client)
{
	c->to.src = to_client ? t->frontend : t->snat;
	c->to.dst = to_client ? t->client : t->backend;
	c->about.src = to_client ? t->client : t->backend;
	c->about.sport = to_client ? t->client_port : t->backend_port;
	c->about.dst = to_client ? t->frontend : t->snat;
	c->about.dport = to_client ? t->frontend_port : c->nat_key.port;
	return cross_error(skb);
}

/* Where there are policies, an error carries no more than what names its flow. False if the kernel refuses. */
INLINE bool error_trim(struct __sk_buff *skb)
{
	return !config.policy || icmp_trim(skb);
}

/* Finds the flow that the CPU's ICMP error is about, and rewrites what it quotes. Returns 0, NEXT_CONTINUE or a drop reason. */
APART enum next error_translate(struct __sk_buff *skb, __u32 own)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;

	if (!c || inner_parse(skb))
		return NEXT_CONTINUE;
	about_reply(c);
	c->to.option = false;
	c->to.encap = false;
	c->to.sport = c->pkt.sport;
	c->to.dport = c->pkt.dport;
	t = nat_entry_reply_client(c, &c->about, true);
	if (!t && own)
		t = nat_entry_reply_node(c, &c->about, true);
	if (t && !error_trim(skb))
		return DROP_REWRITE;
	if (t)
		return error_is_cross_family(t) ? error_cross_family(skb, c, t, true) : error_to_client(skb, c, t);
	if (!nat_entry_search(true))
		return NEXT_CONTINUE;
	t = bpf_map_lookup_elem(&nat_entries, &c->nat_key);
	if (!t)
		return NEXT_CONTINUE;
	if (!error_trim(skb))
		return DROP_REWRITE;
	return error_is_cross_family(t) ? error_cross_family(skb, c, t, false) : error_to_backend(skb, c, t);
}

/* Turns the CPU's ICMP error to whom it is for, and the CPU's path; own: it came to the node's own address. Returns 0, NEXT_CONTINUE or a drop reason. */
INLINE enum next service_error(struct __sk_buff *skb, struct cpu *c, bool own)
{
	__u8 family = c->pkt.family;
	int outcome = error_translate(skb, own);
	bool crossed = family != c->pkt.family;

	if (outcome)
		return outcome;
	c->path.flags = 0;
	if (addr_equal(&c->to.dst, &c->pkt.dst) && c->path.action != PATH_NONE && !crossed)
		return 0;
	return service_path(skb, c);
}

#endif
