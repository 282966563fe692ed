/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DNS messages that pass without the proxy: queries that it has allowed before, and answers from which it would learn
 * nothing. They are handed back by the proxy's device, as the proxy would send them, so that they are forwarded as any
 * packet of the proxy (from_proxy). All other messages go to the proxy.
 */
#ifndef MYELIN_DNS_H
#define MYELIN_DNS_H

#include "row.h"
#include "../../bpf/cpu.h"
#include "../../endpoint/endpoint.h"
#include "../../event/trace.h"

/* Memory grows with the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct dns_key);
	__type(value, struct dns_entry);
} dns_entries SEC(".maps");

/* What events say of DNS messages: of the event in a slot of traces, the element with the same index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dns_report);
} dns_reports SEC(".maps");

/* The start of a datagram: the UDP header, and a DNS message's header and question (RFC 1035 4.1). */
struct dns_head {
	__be16 sport;
	__be16 dport;
	__be16 length;
	__be16 check;
	__be16 id;
	__u8 flags;
	__u8 code;
	__be16 questions;
	__be16 answers;
	__be16 authorities;
	__be16 additionals;
	__u8 question[DNS_QUESTION];
};

#define DNS_HEADERS offsetof(struct dns_head, question)
#define DNS_MESSAGE offsetof(struct dns_head, id)
#define DNS_TAIL 4 /* bytes of type and class, behind the name of a question */
#define DNS_LABEL_MAX 63

#define DNS_RESPONSE 0x80  /* bits of flags */
#define DNS_OPCODE 0x78
#define DNS_TRUNCATED 0x02
#define DNS_CODE 0x0f      /* bits of code */

#define DNS_TYPE_A 1
#define DNS_TYPE_AAAA 28
#define DNS_CLASS_IN 1
#define DNS_POINTER_QUESTION 0xc00c /* a compressed name: that of the question (RFC 1035 4.1.4) */

#define DNS_SECOND 1000000000ULL
#define DNS_PENDING_TIME (60 * DNS_SECOND >> DNS_PENDING_SHIFT) /* pendingTime in Go */

/* Returns the length of the question at q, of which room bytes are there; 0: it has no plain name, or is too long. */
INLINE __u32 dns_question_length(const __u8 *q, __u32 room)
{
	__u32 at = 0, i;
	__u8 size;

	for (i = 0; i < DNS_LABELS; i++) {
		if (at + 1 + DNS_TAIL > room || at + 1 + DNS_TAIL > DNS_QUESTION)
			return 0;
		size = q[at];
		if (!size)
			return at + 1 + DNS_TAIL;
		if (size > DNS_LABEL_MAX)
			return 0;
		at += size + 1;
	}
	return 0;
}

/*
 * Reads the CPU's packet, a UDP datagram, into c->scratch (struct dns_head), and its question into c->dns. Returns
 * false if it is none with a single plain question, or a truncated message. Cost: per DNS message.
 */
INLINE bool dns_read(struct __sk_buff *skb, struct cpu *c)
{
	struct dns_head *h = (void *)c->scratch;
	__u32 l4 = c->pkt.l4, room = c->pkt.end - l4, size = room, length;

	if (c->pkt.fragment || c->pkt.end < l4 || room < DNS_HEADERS + 1 + DNS_TAIL)
		return false;
	if (size > sizeof(*h))
		size = sizeof(*h);
	if (size < DNS_HEADERS)
		return false;
	barrier_var(size); /* kernel 5.10 knows the bounds of the register that was compared alone */
	if (size > sizeof(*h))
		return false;
	if (bpf_skb_load_bytes(skb, l4, h, size))
		return false;
	length = bpf_ntohs(h->length);
	if (length > room || length < DNS_HEADERS || h->questions != bpf_htons(1) ||
	    h->flags & (DNS_OPCODE | DNS_TRUNCATED))
		return false;
	c->dns.end = l4 + length;
	length = dns_question_length(h->question, (length < size ? length : size) - DNS_HEADERS);
	if (length <= DNS_TAIL)
		return false;
	barrier_var(length);
	if (length > DNS_QUESTION)
		return false;
	__builtin_memset(c->dns.key.question, 0, sizeof(c->dns.key.question));
	c->dns.key.length = length;
	return !bpf_skb_load_bytes(skb, l4 + DNS_HEADERS, c->dns.key.question, length);
}

/* Returns the time for pending queries. */
INLINE __u32 dns_pending_now(__u64 now)
{
	return now >> DNS_PENDING_SHIFT;
}

/* Whether a query of the given time is still waited for. */
INLINE bool dns_pending_young(__u32 now, __u32 sent)
{
	return now - sent + DNS_PENDING_SLACK < DNS_PENDING_TIME + DNS_PENDING_SLACK;
}

/* A pending query: when it was sent, the client's port, and its ID. */
INLINE __u64 dns_pending(__u32 now, __be16 port, __be16 id)
{
	return (__u64)now << 32 | (__u32)bpf_ntohs(port) << 16 | bpf_ntohs(id);
}

/* Returns the place of a pending query, the first or the second one of two (n). */
INLINE __u64 *dns_pending_at(struct dns_entry *e, __u64 query, __u32 n)
{
	__u32 i = (query ^ query >> 16) + n;

	barrier_var(i);
	return &e->pending[i & (DNS_PENDING - 1)];
}

/*
 * Notes the query in the entry. Returns false if there is no room: then the proxy has to know of it, since the answer
 * may have other addresses. The last of two that take the same place on two CPUs at once wins; if its answer has other
 * addresses, they are not learnt.
 */
INLINE bool dns_pending_add(struct dns_entry *e, __u64 query)
{
	__u32 now = query >> 32, n;

	for (n = 0; n < 2; n++) {
		__u64 *p = dns_pending_at(e, query, n), had = *p;

		if (had && (__u32)had != (__u32)query && dns_pending_young(now, had >> 32))
			continue;
		*p = query;
		return true;
	}
	return false;
}

/* Finds the query with the port and ID of the given one. */
INLINE __u64 *dns_pending_find(struct dns_entry *e, __u64 query)
{
	__u32 n;

	for (n = 0; n < 2; n++) {
		__u64 *p = dns_pending_at(e, query, n), had = *p;

		if (had && (__u32)had == (__u32)query && dns_pending_young(query >> 32, had >> 32))
			return p;
	}
	return NULL;
}

/* Whether the name at the offset is that of the question. Moves the offset behind it. Cost: per record. */
INLINE bool dns_owner(struct __sk_buff *skb, struct cpu *c, __u32 *off, __u32 length)
{
	const __u64 *question = (const __u64 *)c->dns.key.question, *owner = (const __u64 *)c->dns.owner;
	__be16 pointer;
	__u32 i;

	if (bpf_skb_load_bytes(skb, *off, &pointer, sizeof(pointer)))
		return false;
	if (pointer == bpf_htons(DNS_POINTER_QUESTION)) {
		*off += sizeof(pointer);
		return true;
	}
	length -= DNS_TAIL;
	barrier_var(length);
	if (length < 2) /* the root */
		return false;
	barrier_var(length);
	if (length > DNS_QUESTION - DNS_TAIL)
		return false;
	if (bpf_skb_load_bytes(skb, *off, c->dns.owner, length))
		return false;
	for (i = 0; i < DNS_QUESTION / 8; i++) {
		if (question[i] != owner[i])
			return false;
	}
	*off += length;
	return true;
}

/* What follows the name of a record (RFC 1035 4.1.3). */
struct dns_record {
	__be16 type;
	__be16 class;
	__be16 ttl[2];
	__be16 length;
};

/* Returns the bit of the address in the entry, 0 if the entry does not have it. */
INLINE __u32 dns_entry_find(const struct dns_entry *e, const struct addr *a)
{
	__u32 i;

	for (i = 0; i < DNS_ADDRESSES; i++) {
		if (i < e->addresses && addr_equal(&e->addr[i], a))
			return 1 << i;
	}
	return 0;
}

/*
 * Whether the record at the offset is an address that the entry has, with a TTL of at most left seconds. type: that of
 * the question. Copies the address to *a, and moves the offset behind the record. Cost: per record.
 */
INLINE bool dns_record_known(struct __sk_buff *skb, struct cpu *c, const struct dns_entry *e, __u32 *off, __be16 type,
			     __u32 left, struct addr *a)
{
	struct dns_record r;
	__be32 v4;
	__u32 ttl, bit;

	if (!dns_owner(skb, c, off, c->dns.key.length) || bpf_skb_load_bytes(skb, *off, &r, sizeof(r)))
		return false;
	*off += sizeof(r);
	ttl = (__u32)bpf_ntohs(r.ttl[0]) << 16 | bpf_ntohs(r.ttl[1]);
	if (r.type != type || r.class != bpf_htons(DNS_CLASS_IN) || ttl > left)
		return false;
	if (ttl < c->dns.ttl)
		c->dns.ttl = ttl;
	if (ttl > c->dns.longest)
		c->dns.longest = ttl;
	if (type == bpf_htons(DNS_TYPE_A)) {
		if (r.length != bpf_htons(sizeof(v4)) || bpf_skb_load_bytes(skb, *off, &v4, sizeof(v4)))
			return false;
		addr_map4(a, v4);
		*off += sizeof(v4);
	} else {
		if (type != bpf_htons(DNS_TYPE_AAAA) || r.length != bpf_htons(sizeof(*a)) ||
		    bpf_skb_load_bytes(skb, *off, a, sizeof(*a)))
			return false;
		*off += sizeof(*a);
	}
	bit = dns_entry_find(e, a);
	c->dns.seen |= bit;
	return bit && *off <= c->dns.end;
}

/*
 * Whether the proxy would learn nothing from the answer: it has no records, or addresses of the entry for the name that
 * was asked for, all of which policies know for longer than their TTL. Cost: per answer.
 */
INLINE bool dns_answer_known(struct __sk_buff *skb, struct cpu *c, const struct dns_entry *e, __u64 now)
{
	const struct dns_head *h = (void *)c->scratch;
	__u32 off = c->pkt.l4 + DNS_HEADERS + c->dns.key.length, n = bpf_ntohs(h->answers), i;
	__u32 left = (e->expires - now) / DNS_SECOND;
	__be16 type;

	c->dns.ttl = n ? left : 0;
	c->dns.longest = 0;
	c->dns.seen = 0;
	if (!n)
		return true;
	if (h->code & DNS_CODE || n > DNS_ADDRESSES || bpf_skb_load_bytes(skb, off - DNS_TAIL, &type, sizeof(type)))
		return false;
	__builtin_memcpy(c->dns.owner, c->dns.key.question, sizeof(c->dns.owner));
	for (i = 0; i < DNS_ADDRESSES; i++) {
		if (i >= n)
			break;
		if (!dns_record_known(skb, c, e, &off, type, left, &c->dns.addr[i]))
			return false;
	}
	return true;
}

/*
 * Notes in the entry what the answer says, from which the proxy learns later. What another CPU notes at the same time
 * may be lost. Cost: per answer.
 */
INLINE void dns_answer_note(const struct cpu *c, struct dns_entry *e, __u64 now)
{
	__u64 end = now + c->dns.longest * DNS_SECOND;

	if (e->seen < end)
		e->seen = end;
	if (c->dns.seen & ~e->seen_addr)
		e->seen_addr |= c->dns.seen;
}

/*
 * Reports the message to Hubble, if there is an agent that reads. sent: when the query was, in the units of pending
 * queries; of an answer. Cost: per DNS message that passes, with dns_reports.
 */
INLINE void dns_report(struct __sk_buff *skb, struct cpu *c, enum outcome outcome, __u32 sent)
{
	const struct dns_head *h = (void *)c->scratch;
	struct trace_slot *head, *slot;
	struct dns_report *r;
	__u32 i;

	if (!config.dns_reports || !(listening & LISTEN_TRACE))
		return;
	slot = trace_reserve(c, &head);
	if (!slot)
		return;
	i = trace_next(head, trace_first());
	r = bpf_map_lookup_elem(&dns_reports, &i);
	if (!r) {
		c->trace_budget.lost++;
		return;
	}
	event_fill_skb(skb, &c->pkt, &slot->event);
	slot->event.type = EVENT_DNS;
	slot->event.outcome = outcome;
	trace_translated(skb, &c->pkt, &slot->event);
	r->length = c->dns.key.length;
	__builtin_memcpy(r->question, c->dns.key.question, sizeof(r->question));
	r->latency = 0;
	r->ttl = 0;
	r->records = 0;
	r->code = 0;
	if (outcome == FORWARD_DNS_ANSWER) {
		r->latency = (__u64)(dns_pending_now(slot->event.time_ns) - sent) << DNS_PENDING_SHIFT;
		r->ttl = c->dns.ttl;
		r->records = bpf_ntohs(h->answers);
		r->code = h->code & DNS_CODE;
		__builtin_memcpy(r->addr, c->dns.addr, sizeof(r->addr));
	}
	trace_commit(head, slot);
}

/*
 * Whether the CPU's packet may pass without the proxy. slots: those of source and destination, in the upper and lower
 * half. Returns the outcome to be counted: FORWARD_PROXY if it may not. Cost: per DNS message.
 */
APART enum outcome dns_pass(struct __sk_buff *skb, __u32 slots)
{
	__u32 src = slots >> 16, dst = slots & 0xffff;
	struct cpu *c = cpu_this();
	const struct dns_head *h;
	struct dns_key *key;
	__u64 now, query, *pending;
	struct dns_entry *e;
	bool response;

	if (!c || !dns_read(skb, c))
		return FORWARD_PROXY;
	h = (void *)c->scratch;
	key = &c->dns.key;
	response = h->flags & DNS_RESPONSE;
	key->server = response ? c->pkt.src : c->pkt.dst;
	key->port = response ? h->sport : h->dport;
	key->slot = response ? dst : src;
	e = bpf_map_lookup_elem(&dns_entries, key);
	now = bpf_ktime_get_ns();
	if (!e || e->epoch != epoch_sum(src, dst) || e->expires <= now)
		return FORWARD_PROXY;
	query = dns_pending(dns_pending_now(now), response ? h->dport : h->sport, h->id);
	if (!response) {
		if (h->answers || h->authorities || !dns_pending_add(e, query))
			return FORWARD_PROXY;
		dns_report(skb, c, FORWARD_DNS_QUERY, 0);
		return FORWARD_DNS_QUERY;
	}
	pending = dns_pending_find(e, query);
	if (!pending || !dns_answer_known(skb, c, e, now))
		return FORWARD_PROXY;
	dns_answer_note(c, e, now);
	dns_report(skb, c, FORWARD_DNS_ANSWER, *pending >> 32);
	*pending = 0;
	return FORWARD_DNS_ANSWER;
}

#endif
