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

/*
 * Finds the flow whose packet the ICMP error quotes, and sets c->nat_key. to_client: the packet was a request, so that
 * the error is for the client, else for the backend. Returns NULL if there is none.
 */
INLINE struct nat_entry *error_find(struct cpu *c, bool *to_client)
{
	about_reply(c);
	*to_client = nat_entry_reply(c, &c->about);
	return *to_client ? bpf_map_lookup_elem(&nat_entries, &c->nat_key) : nat_entry_request(c, &c->about);
}

/* Whether client and backend of the flow are of different families. */
INLINE bool error_is_cross_family(const struct cpu *c, const struct nat_entry *t)
{
	return addr_is4(&c->nat_key.src) != addr_is4(&t->backend);
}

/* Sets c->about to the request as the client sent it, to the frontend, and c->to to the ends of an error about it. */
INLINE void error_to_client(struct cpu *c, const struct nat_entry *t)
{
	const struct nat_tuple *k = &c->nat_key;

	c->about.src = c->to.dst = k->src;
	c->about.sport = k->sport;
	c->about.dst = k->dst;
	c->about.dport = k->dport;
	c->to.src = error_is_cross_family(c, t) || addr_equal(&c->pkt.src, &t->backend) ? k->dst : c->pkt.src;
}

/*
 * Whether the backend is outside the cluster and gets the flow's packets unchanged, in IPIP (see node_of): it sent the
 * reply from the frontend's address.
 */
INLINE bool error_is_encapsulated(const struct nat_entry *t)
{
	return config.direct && config.lb_dispatch == DISPATCH_IPIP && !config.tunnel && t->flags & NAT_ENTRY_DSR &&
	       t->backend_id && !prefix_find(&t->backend);
}

/*
 * Sets c->about to the reply as the backend sent it, to the client or to the address that it knows the client by, and
 * c->to to the ends of an error about it; or has the error encapsulated as it is.
 */
INLINE void error_to_backend(struct cpu *c, const struct nat_entry *t)
{
	bool snat = t->flags & NAT_ENTRY_SNAT;

	if (error_is_encapsulated(t)) {
		c->to.src = c->pkt.src;
		c->to.dst = c->pkt.dst;
		c->to.via = t->backend;
		c->to.encap = true;
		return;
	}
	c->about.src = c->to.dst = t->backend;
	c->about.sport = t->backend_port;
	c->about.dst = snat ? t->snat : c->inner.dst;
	c->about.dport = snat ? t->nat_port : c->inner.dport;
	c->to.src = snat ? t->snat : c->pkt.src;
}

/* Sets c->to to the ends of the translated error, and c->about to the packet that it must quote. */
INLINE void error_rewrite(struct cpu *c, const struct nat_entry *t, bool to_client)
{
	c->to.option = false;
	c->to.encap = false;
	c->to.sport = c->pkt.sport;
	c->to.dport = c->pkt.dport;
	if (to_client)
		error_to_client(c, t);
	else
		error_to_backend(c, t);
}

/* Rewrites one end of the quoted packet and all checksums that cover it. Returns NEXT_FORWARD or a drop reason. */
INLINE enum next quote_write(struct __sk_buff *skb, struct cpu *c, bool source, const struct addr *to, __be16 port)
{
	c->inner.to = *to;
	c->inner.port = port;
	return inner_write(skb, source);
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
 * Finds the flow that the ICMP error is about, and rewrites the quoted packet. Sets c->to. Returns NEXT_FORWARD,
 * NEXT_CONTINUE or a drop reason.
 */
APART enum next error_translate(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;
	struct packet *about;
	struct inner *in;
	bool to_client;
	int outcome;

	if (!c || inner_parse(skb))
		return NEXT_CONTINUE;
	t = error_find(c, &to_client);
	if (!t)
		return NEXT_CONTINUE;
	if (!error_trim(skb))
		return DROP_REWRITE;
	error_rewrite(c, t, to_client);
	if (c->to.encap)
		return NEXT_FORWARD;
	if (error_is_cross_family(c, t))
		return cross_error(skb);
	about = &c->about;
	in = &c->inner;
	outcome = quote_write(skb, c, true, &about->src, about->sport);
	if (outcome || (about->dport == in->dport && addr_equal(&about->dst, &in->dst)))
		return outcome; /* without SNAT, a reply's destination stays */
	return quote_write(skb, c, false, &about->dst, about->dport);
}

/*
 * Translates the ICMP error and finds the path to its receiver. Returns NEXT_FORWARD, NEXT_CONTINUE or a drop reason.
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
		return NEXT_FORWARD;
	return service_path(skb, c);
}

#endif
