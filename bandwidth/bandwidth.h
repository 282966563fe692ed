/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Bandwidth limits of pods. Each limited direction of an endpoint has a time from which on its next packet may depart,
 * which each packet moves by as long as it takes at that rate. The fq qdisc of the device delays the packet until then.
 * It has bands, too, which the priority of packets selects.
 */
#ifndef MYELIN_BANDWIDTH_H
#define MYELIN_BANDWIDTH_H

#include "../bpf/l4.h"
#include "../drop/drop.h"
#include "../endpoint/endpoint.h"

#define NSEC_PER_SEC 1000000000ULL

/* How far ahead, in ns, sockets may have their packets depart: they are sent before, not dropped. */
#define BANDWIDTH_AHEAD (2 * NSEC_PER_SEC)

enum bandwidth_direction {
	BANDWIDTH_EGRESS,  /* from the pod, to a wire */
	BANDWIDTH_INGRESS, /* to the pod */
};

struct bandwidth_key {
	__u16 slot;      /* of the endpoint */
	__u16 direction; /* enum bandwidth_direction */
};

struct bandwidth {
	__u64 rate;    /* bytes per second, with Ethernet headers; 0: no limit, only a priority */
	__u64 horizon; /* ns that a packet may wait; others are dropped */
	__u64 next;    /* ns of CLOCK_MONOTONIC from which on the next packet may depart */
	__u32 paced;   /* true: packets wait in a qdisc; false: they are sent at once, and horizon bounds bursts */
	__u32 priority; /* skb->priority of what the pod sends, plus 1; 0: it is not set */
	struct counter sent;
	struct counter dropped; /* beyond the horizon */
};

/* Only endpoints with a limit or a priority have entries. Memory grows with the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bandwidth_key);
	__type(value, struct bandwidth);
} bandwidths SEC(".maps");

INLINE struct bandwidth *bandwidth_find(__u16 slot, enum bandwidth_direction direction)
{
	struct bandwidth_key key = { .slot = slot, .direction = direction };

	return bpf_map_lookup_elem(&bandwidths, &key);
}

/* Which ends of a path have a limit that applies to its packets. */
enum path_limit {
	LIMIT_SOURCE = 1,
	LIMIT_DESTINATION = 2,
};

/*
 * Returns the limits (enum path_limit) for packets between the endpoints with these slots, SLOT_NONE: another node or
 * the world. What a pod sends within the node takes nothing of the wires, and of its limit. Slow path.
 */
APART __u32 bandwidth_limits(__u32 src, __u32 dst)
{
	__u32 limits = 0;

	if (src > SLOT_HOST && dst == SLOT_NONE && bandwidth_find(src, BANDWIDTH_EGRESS))
		limits |= LIMIT_SOURCE;
	if (dst > SLOT_HOST && bandwidth_find(dst, BANDWIDTH_INGRESS))
		limits |= LIMIT_DESTINATION;
	return limits;
}

INLINE void bandwidth_count(struct counter *c, __u64 bytes)
{
	__sync_fetch_and_add(&c->packets, 1);
	__sync_fetch_and_add(&c->bytes, bytes);
}

/*
 * Takes the time of a packet. Returns when it may depart, or 0 if that is beyond the horizon. There is no lock: packets
 * of two CPUs may get the same time, but both are added, so that the rate is exact while packets wait. Where none waits
 * one of them may be lost. Cost: per packet of endpoints with a limit.
 */
INLINE __u64 bandwidth_take(struct bandwidth *b, __u64 bytes, __u64 now)
{
	__u64 next = *(volatile __u64 *)&b->next, takes = bytes * NSEC_PER_SEC / b->rate;

	if (next <= now) {
		next = now;
		*(volatile __u64 *)&b->next = now + takes;
	} else if (next - now <= b->horizon) {
		__sync_fetch_and_add(&b->next, takes);
	} else {
		bandwidth_count(&b->dropped, bytes);
		return 0;
	}
	bandwidth_count(&b->sent, bytes);
	return next;
}

/* Returns the length of the packet's frames on the wire. Each segment has headers of its own. */
INLINE __u64 bandwidth_bytes(const struct __sk_buff *skb, const struct packet *pkt)
{
	__u32 gso = skb->gso_size, frame, more;

	if (!gso)
		return skb->len;
	frame = ETH_HLEN + l4_packet_size(skb, pkt);
	more = skb->len > frame ? (skb->len - frame + gso - 1) / gso : 0; /* gso_segs is not always set */
	return skb->len + (__u64)more * (frame - gso);
}

/*
 * Sets the priority of a packet of the pod in slot, and when it departs by a wire. Of a packet that its socket delays
 * for longer, the socket's time counts. Returns 0, or the verdict on a packet that was dropped. Cost: per packet of
 * endpoints with a limit or a priority.
 */
APART int bandwidth_pace(struct __sk_buff *skb, __u32 slot)
{
	struct bandwidth *b = bandwidth_find(slot, BANDWIDTH_EGRESS);
	struct cpu *c = cpu_this();
	__u64 now, departs, own;

	if (!b || !c)
		return 0;
	if (b->priority)
		skb->priority = b->priority - 1;
	if (!b->rate)
		return 0;
	now = bpf_ktime_get_ns();
	departs = bandwidth_take(b, bandwidth_bytes(skb, &c->pkt), now);
	if (!departs) {
		c->pkt.slot = slot;
		return drop(skb, c, DROP_BANDWIDTH);
	}
	if (!config.edt || !b->paced)
		return 0;
	if (skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO) {
		own = skb->tstamp;
		if (own > now + BANDWIDTH_AHEAD)
			own = now + BANDWIDTH_AHEAD;
		if (own > departs)
			departs = own;
	}
	if (departs > now)
		bpf_skb_set_tstamp(skb, departs, BPF_SKB_TSTAMP_DELIVERY_MONO);
	return 0;
}

/*
 * Sets when a packet reaches the pod by its link. Returns a verdict. Cost: per packet from the host, and per packet to
 * endpoints with a limit.
 */
APART int bandwidth_deliver(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct pod_link *l = bpf_map_lookup_elem(&pod_links, &ifindex);
	struct bandwidth *b = l ? bandwidth_find(l->endpoint.slot, BANDWIDTH_INGRESS) : NULL;
	struct cpu *c;
	__u64 now, departs;

	if (!b)
		return TC_ACT_OK;
	now = bpf_ktime_get_ns();
	departs = bandwidth_take(b, skb->wire_len, now);
	if (!departs) {
		c = cpu_this();
		if (!c)
			return TC_ACT_SHOT;
		packet_parse(skb, &c->pkt, HOOK_TO_POD);
		c->pkt.slot = l->endpoint.slot;
		return drop(skb, c, DROP_BANDWIDTH);
	}
	if (b->paced && (departs > skb->tstamp || skb->tstamp > now + BANDWIDTH_AHEAD))
		skb->tstamp = departs;
	return TC_ACT_OK;
}

#endif
