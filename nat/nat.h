/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Masquerade: pods reach the world from the node's own address. The port is computed from the connection, so the pod's side of a row is found without
 * a second row: the candidates are tried in a fixed order, and BPF_NOEXIST decides between two CPUs that want the same one.
 */
#ifndef MYELIN_NAT_H
#define MYELIN_NAT_H

#include "write.h"
#include "../flow/judge.h"

#define NAT_ATTEMPTS 16 /* a power of 2 */

/* A port from min to max for the packet's flow: the same for each attempt whenever it is asked. */
INLINE __be16 port_candidate(const struct packet *pkt, __u32 attempt, __u32 min, __u32 max)
{
	__u64 h = pkt->src.d[1] * 0x9e3779b97f4a7c15ULL;

	h = (h ^ pkt->dst.d[1] ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
	h = (h ^ ((__u32)pkt->sport << 16 | pkt->dport) ^ (h >> 32)) * 0x94d049bb133111ebULL;
	/* Of a range by multiplication: a division costs a packet 8 ns. The attempts are as far from each other as they can be. */
	return bpf_htons(min + ((__u64)((__u32)(h >> 32) + attempt * 0x9e3779b9u) * (max - min + 1) >> 32));
}

INLINE __be16 nat_candidate(const struct packet *pkt, __u32 attempt)
{
	return port_candidate(pkt, attempt, config.nat_port_min, config.nat_port_max);
}

/* True if a socket of the host already uses what the pod would look like. */
INLINE bool nat_host_uses(struct __sk_buff *skb, const struct packet *pkt, const struct addr *snat, __be16 port)
{
	struct bpf_sock_tuple t = {};
	__u32 size = pkt->family == 4 ? sizeof(t.ipv4) : sizeof(t.ipv6);
	struct bpf_sock *sk;

	if (pkt->family == 4) {
		t.ipv4.saddr = pkt->dst.w[3];
		t.ipv4.daddr = snat->w[3];
		t.ipv4.sport = pkt->dport;
		t.ipv4.dport = port;
	} else {
		__builtin_memcpy(t.ipv6.saddr, &pkt->dst, 16);
		__builtin_memcpy(t.ipv6.daddr, snat, 16);
		t.ipv6.sport = pkt->dport;
		t.ipv6.dport = port;
	}
	if (pkt->proto == IPPROTO_TCP)
		sk = bpf_skc_lookup_tcp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	else if (pkt->proto == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	else
		return false;
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

INLINE bool nat_owns(const struct flow *f, const struct packet *pkt)
{
	return f->flags & FLOW_NAT && f->pod_port == pkt->sport && addr_equal(&f->pod, &pkt->src);
}

/* An ICMP error by which a pod answers the world. Returns 0 or a drop reason. Slow path. */
APART int nat_out_error(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct packet *about;
	struct inner *in;
	struct flow *f;
	int outcome;
	__u32 i;

	if (!c)
		return DROP_REWRITE;
	in = &c->inner;
	about = &c->about;
	outcome = inner_parse(skb);
	if (outcome)
		return outcome;
	about->src = in->dst;
	about->dst = in->src;
	about->sport = in->dport;
	about->dport = in->sport;
	about->proto = in->proto;
	for (i = 0; i < NAT_ATTEMPTS; i++) {
		flow_key_of(&c->key, &c->snat, nat_candidate(about, i), &in->src, in->sport, in->proto);
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (f && nat_owns(f, about))
			break;
	}
	if (i == NAT_ATTEMPTS || !f || f->flags & FLOW_DENIED)
		return DROP_ICMP_UNRELATED; /* nothing of the pod's that the world could know */
	if (config.policy && !icmp_trim(skb))
		return DROP_REWRITE;
	in->to = c->snat;
	in->port = nat_candidate(about, i);
	outcome = inner_write(skb, false);
	if (outcome)
		return outcome;
	return nat_write(skb, &c->pkt, true, &c->snat, c->pkt.sport) ? 0 : DROP_REWRITE;
}

/* Makes the CPU's key that of the attempt's candidate. Returns the side that the pod is on. */
INLINE int nat_key(struct cpu *c, __u32 attempt)
{
	return flow_key_of(&c->key, &c->snat, nat_candidate(&c->pkt, attempt), &c->pkt.dst, c->pkt.dport, c->pkt.proto);
}

/* Whether another flow may have the row's port: for a TCP connection that begins, if the peer keeps nothing of the one before. */
INLINE bool nat_left(const struct flow *f, const struct packet *pkt)
{
	bool reset = (f->side[0].tcp_flags | f->side[1].tcp_flags) & TCP_RST;

	return f->flags & FLOW_CLOSING && (reset || f->flags & FLOW_POD_FIN) && flow_syn(pkt) && flow_quiet(f->seen);
}

/* Whether a flow makes room where no port is free: nothing proves that its peer exists. */
INLINE bool nat_yields(const struct flow *f, __u8 proto)
{
	return !(proto == IPPROTO_TCP ? flow_established(f) : f->flags & FLOW_REPLIED) && flow_waited(f->created);
}

/* Whether the row of another flow is in the way of the CPU's packet; pressure: no port is free. */
INLINE bool nat_blocks(const struct flow *f, const struct packet *pkt, bool pressure)
{
	return !flow_expired(f, pkt->proto) && !nat_left(f, pkt) && !(pressure && nat_yields(f, pkt->proto));
}

/* Claims one candidate for the CPU's packet. Returns 1 if the row is now the packet's. Cost: per flow. */
APART int nat_claim(struct __sk_buff *skb, __u32 attempt, __u32 pressure)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	struct flow *f;
	int side;

	if (!c)
		return 0;
	side = nat_key(c, attempt);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (f && nat_owns(f, &c->pkt) && !flow_expired(f, c->pkt.proto))
		return 1;
	if (f && nat_blocks(f, &c->pkt, pressure))
		return 0;
	if (f)
		bpf_map_delete_elem(&flows, &c->key);
	if (nat_host_uses(skb, &c->pkt, &c->snat, nat_candidate(&c->pkt, attempt)))
		return 0;
	f = flow_new(c, side);
	f->flags = FLOW_NAT;
	f->pod = c->pkt.src;
	f->pod_port = c->pkt.sport;
	f->pod_side = side;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);
	if (e) {
		f->slot = e->slot;
		decide_pod(&f->way, e);
	}
	bpf_map_update_elem(&flows, &c->key, f, BPF_NOEXIST);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (!f || !nat_owns(f, &c->pkt))
		return 0;
	event_flow(skb, EVENT_FLOW_BEGIN);
	return 1;
}

/* The attempt whose row is the CPU's packet's, or -1. A SYN begins anew anyway, so that the first free place ends the search. */
APART int nat_find(void)
{
	struct cpu *c = cpu_this();
	int i, found = -1;
	struct flow *f;
	bool begins;

	if (!c)
		return -1;
	begins = c->pkt.proto == IPPROTO_TCP && (c->pkt.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	for (i = 0; i < NAT_ATTEMPTS && found < 0; i++) {
		nat_key(c, i);
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (f && nat_owns(f, &c->pkt))
			found = i;
		else if (!f && begins)
			i = NAT_ATTEMPTS;
	}
	return found;
}

/* What nat_reclaim counts, in the CPU's scratch: the verifier would follow each value of it in registers. */
struct nat_share {
	__u32 slot;   /* of the pod that may have most */
	__u32 owned;  /* candidates that it has */
	__u32 oldest; /* clock tick of the last packet of the one that was idle for the longest */
	__u32 found;  /* its attempt, and 1 more */
};

/* Looks at one candidate. */
INLINE void nat_share_count(struct nat_share *s, const struct flow *f, __u32 attempt)
{
	if (!attempt)
		s->slot = f->slot;
	if (f->slot != s->slot)
		return;
	s->owned++;
	if (s->found && !clock_before(f->seen, s->oldest))
		return;
	s->found = attempt + 1;
	s->oldest = f->seen;
}

/*
 * Where no candidate is free and another pod has most of them: deletes the row of that pod that was idle for the longest. Returns its attempt, or -1. Slow
 * path, under pressure only.
 */
APART int nat_reclaim(void)
{
	struct cpu *c = cpu_this();
	struct nat_share *s;
	struct flow *f;
	int i;

	if (!c)
		return -1;
	s = (void *)c->scratch;
	__builtin_memset(s, 0, sizeof(*s));
	for (i = 0; i < NAT_ATTEMPTS; i++) {
		nat_key(c, i);
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (f && (!i || nat_candidate(&c->pkt, i) != nat_candidate(&c->pkt, 0))) /* in a small range attempts meet again */
			nat_share_count(s, f, i);
	}
	if (!s->found || !s->slot || s->slot == c->path.src_slot || s->owned <= NAT_ATTEMPTS / 2)
		return -1;
	i = (s->found - 1) & (NAT_ATTEMPTS - 1);
	nat_key(c, i);
	bpf_map_delete_elem(&flows, &c->key);
	return i;
}

/* Finds or makes the row of a flow whose first candidate is not its own. Returns the attempt, or -1. A later candidate may be in use while an earlier
 * one is free again, so all are looked at before one is claimed. */
APART int nat_search(struct __sk_buff *skb)
{
	int i = nat_find();

	if (i >= 0)
		return i;
	for (i = 0; i < 2 * NAT_ATTEMPTS; i++) {
		if (nat_claim(skb, i & (NAT_ATTEMPTS - 1), i >= NAT_ATTEMPTS))
			return i & (NAT_ATTEMPTS - 1);
	}
	i = nat_reclaim();
	return i >= 0 && nat_claim(skb, i, true) ? i : -1;
}

/* What is no new flow of the pod's, but its answer to one that the world began: the row says so. Cost: per packet of such a flow. */
INLINE bool nat_answers(struct __sk_buff *skb, struct cpu *c)
{
	int side = flow_key_own(c);
	struct flow *f = bpf_map_lookup_elem(&flows, &c->key);

	if (!f || f->flags & FLOW_NAT || f->origin == side || flow_expired(f, c->pkt.proto))
		return false;
	if (!flow_tracked(&c->path)) /* or it will be counted where its way is kept */
		flow_count(skb, &c->pkt, f, side);
	return true;
}

/* The packet leaves as it is. */
#define NAT_NONE -1

/*
 * Makes the row of a connection that the world opened to the pod's own address, whose row is gone: the pod's kernel knows it. The CPU's segment begins
 * none then. Returns 1 if that is so. Slow path: segments without a row.
 */
APART int nat_restore(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	struct flow *f;
	int side, at;

	if (!c || c->pkt.proto != IPPROTO_TCP || flow_syn(&c->pkt))
		return 0;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.src);
	at = e ? connection_at(skb, e->slot, true) : CONNECTION_UNKNOWN;
	if (at != CONNECTION_ACCEPTED && at != CONNECTION_CLAIMED)
		return 0;
	side = flow_key_own(c);
	f = flow_new(c, side);
	f->origin = !side;
	flow_count(skb, &c->pkt, f, side);
	bpf_map_update_elem(&flows, &c->key, f, BPF_NOEXIST);
	return 1;
}

/* Translates the CPU's packet, which a pod sends to the world, to the address c->snat. Returns 0, NAT_NONE or a drop reason. */
APART int nat_out(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct flow *f;
	int side, attempt = 0, outcome;

	if (!c)
		return DROP_REWRITE;
	outcome = l4_parse(skb, &c->pkt);
	if (outcome)
		return outcome;
	if (l4_is_icmp_error(&c->pkt))
		return nat_out_error(skb);
	if (!nat_supports(&c->pkt))
		return DROP_UNSUPPORTED_L4;
	if (config.tunnel && c->pkt.proto == IPPROTO_UDP && unlikely(c->pkt.dport == bpf_htons(config.tunnel_port)))
		return DROP_TUNNEL_PORT; /* it would be taken for this node's */
	side = nat_key(c, 0);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (unlikely(!f || !nat_owns(f, &c->pkt))) {
		if (nat_answers(skb, c))
			return NAT_NONE;
		if (judge_must(&c->path)) {
			outcome = judge_known(skb, c, side, false);
			if (outcome)
				return outcome;
		}
		if (nat_restore(skb))
			return NAT_NONE;
		attempt = nat_search(skb);
		if (attempt < 0)
			return DROP_NAT_NO_PORT;
		side = nat_key(c, attempt);
		f = bpf_map_lookup_elem(&flows, &c->key);
		if (!f)
			return DROP_MAP_FULL;
	} else if (judge_must(&c->path) && (outcome = judge_known(skb, c, side, true))) {
		return outcome;
	}
	flow_reopen(c, f, side);
	flow_count(skb, &c->pkt, f, side);
	return nat_write(skb, &c->pkt, true, &c->snat, nat_candidate(&c->pkt, attempt)) ? 0 : nat_refusal(&c->pkt);
}

#endif
