/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about translated packets. They are translated as their flow is, and quote the packet as their receiver
 * sent it. Slow path.
 */
#ifndef MYELIN_SERVICE_ERROR_H
#define MYELIN_SERVICE_ERROR_H

#include "cross_error.h"
#include "send.h"

/* Sets c->about to a reply to the packet that the ICMP error quotes. */
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

/* Rewrites one end of the quoted packet and all checksums that cover it. Returns 0 or a drop reason. */
INLINE int quote_write(struct __sk_buff *skb, struct cpu *c, bool source, const struct addr *to, __be16 port)
{
	c->inner.to = *to;
	c->inner.port = port;
	return inner_write(skb, source);
}

/*
 * Translates an error about a request to the backend: the client sent that to the frontend. Returns 0 or a drop reason.
 */
INLINE int error_to_client(struct __sk_buff *skb, struct cpu *c, const struct nat_entry *t)
{
	int outcome = quote_write(skb, c, true, &t->client, t->client_port);

	c->to.dst = t->client;
	c->to.src = addr_equal(&c->pkt.src, &t->backend) ? t->frontend : c->pkt.src;
	return outcome ? outcome : quote_write(skb, c, false, &t->frontend, t->frontend_port);
}

/*
 * Translates an error about a reply: the backend sent that to the client, or to the address that it knows the client
 * by. Returns 0 or a drop reason.
 */
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

/* Whether client and backend of the flow are of different families. */
INLINE bool error_is_cross_family(const struct nat_entry *t)
{
	return addr_is4(&t->client) != addr_is4(&t->backend);
}

/*
 * Translates an error to the other family: one about a request, for the client (to_client), or one about a reply, for
 * the backend. Returns 0 or a drop reason.
 */
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

/*
 * Removes all data from the error that is not needed to identify its flow, if policies are enforced. Returns false if
 * the kernel refuses.
 */
INLINE bool error_trim(struct __sk_buff *skb)
{
	return !config.policy || icmp_trim(skb);
}

/*
 * Finds the flow that the ICMP error is about, and rewrites the quoted packet. Sets c->to. Returns 0, NEXT_CONTINUE or
 * a drop reason.
 */
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

/*
 * Translates the ICMP error and finds the path to its receiver; own: it was sent to the node's own address. Returns 0,
 * NEXT_CONTINUE or a drop reason.
 */
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
