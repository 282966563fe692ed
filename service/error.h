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
	const struct nat_tuple *k = &c->nat_key;
	int outcome = quote_write(skb, c, true, &k->src, k->sport);

	c->to.dst = k->src;
	c->to.src = addr_equal(&c->pkt.src, &t->backend) ? k->dst : c->pkt.src;
	return outcome ? outcome : quote_write(skb, c, false, &k->dst, k->dport);
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
	return quote_write(skb, c, false, &t->snat, t->nat_port);
}

/* Whether client and backend of the flow are of different families. */
INLINE bool error_is_cross_family(const struct cpu *c, const struct nat_entry *t)
{
	return addr_is4(&c->nat_key.src) != addr_is4(&t->backend);
}

/*
 * Translates an error to the other family: one about a request, for the client (to_client), or one about a reply, for
 * the backend. Returns 0 or a drop reason.
 */
INLINE int error_cross_family(struct __sk_buff *skb, struct cpu *c, const struct nat_entry *t, bool to_client)
{
	const struct nat_tuple *k = &c->nat_key;

	c->to.src = to_client ? k->dst : t->snat;
	c->to.dst = to_client ? k->src : t->backend;
	c->about.src = c->to.dst;
	c->about.sport = to_client ? k->sport : t->backend_port;
	c->about.dst = c->to.src;
	c->about.dport = to_client ? k->dport : t->nat_port;
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
APART enum next error_translate(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t = NULL;
	bool to_client;

	if (!c || inner_parse(skb))
		return NEXT_CONTINUE;
	about_reply(c);
	c->to.option = false;
	c->to.encap = false;
	c->to.sport = c->pkt.sport;
	c->to.dport = c->pkt.dport;
	to_client = nat_entry_reply(c, &c->about);
	t = to_client ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : nat_entry_request(c, &c->about);
	if (!t)
		return NEXT_CONTINUE;
	if (!error_trim(skb))
		return DROP_REWRITE;
	if (error_is_cross_family(c, t))
		return error_cross_family(skb, c, t, to_client);
	return to_client ? error_to_client(skb, c, t) : error_to_backend(skb, c, t);
}

/*
 * Translates the ICMP error and finds the path to its receiver. Returns 0, NEXT_CONTINUE or a drop reason.
 */
INLINE enum next service_error(struct __sk_buff *skb, struct cpu *c)
{
	__u8 family = c->pkt.family;
	int outcome = error_translate(skb);
	bool crossed = family != c->pkt.family;

	if (outcome)
		return outcome;
	c->path.flags = 0;
	if (addr_equal(&c->to.dst, &c->pkt.dst) && c->path.action != PATH_NONE && !crossed)
		return 0;
	return service_path(skb, c);
}

#endif
