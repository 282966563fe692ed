/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Prefilter: a denylist of source addresses, whose packets are dropped at the wires before anything else: in XDP where
 * all wires have it, otherwise in from_wire.
 */
#ifndef MYELIN_PREFILTER_H
#define MYELIN_PREFILTER_H

#include "../../bpf/xdp_port.h"
#include "../../drop/drop.h"
#include "../policy.h"
#include "../../route/tunnel/tunnel.h"

/* Blocked addresses and prefixes; the longest match decides. 0: exempt, otherwise the number of the list. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, __u32);
} denylist SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
} denylist_prefixes SEC(".maps");

/* Set if all wires have XDP, so that from_wire needs no lookup. */
__u32 prefiltered;

/* Whether the address is blocked. Cost: per packet from a wire where lists are in force, two lookups. */
INLINE bool denylist_matches(const struct addr *a)
{
	__u32 *list = policy_address_find(&denylist, &denylist_prefixes, a);

	return list && *list;
}

/* Parses the IP header, whether or not XDP does anything else with the packet. Returns false if there is none. */
INLINE bool prefilter_parse(struct xdp_md *ctx, struct cpu *c)
{
	struct packet *pkt = &c->pkt;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = data + L3;
	struct iphdr *ip4 = data + L3;

	packet_reset(pkt, xdp_wire(ctx, c), HOOK_FROM_WIRE_XDP);
	if ((void *)(ip4 + 1) > end)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && config.ipv4) {
		packet_read4(pkt, ip4);
		return true;
	}
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || !config.ipv6 || (void *)(ip6 + 1) > end)
		return false;
	packet_read6(pkt, ip6);
	return true;
}

/* Whether XDP drops the frame. Cost: per packet, as denylist_matches. */
APART int prefilter_xdp(struct xdp_md *ctx)
{
	struct cpu *c = cpu_this();

	if (!c || !prefilter_parse(ctx, c) || !denylist_matches(&c->pkt.src))
		return 0;
	count_bytes(c, DROP_PREFILTER, ctx->data_end - ctx->data);
	event_send_xdp(ctx, c, DROP_PREFILTER);
	return 1;
}

/*
 * Whether from_wire drops the packet. Packets from the tunnel were checked by their outer source address; XDP checks
 * priority-tagged frames only if xdp_map_ports is set. Cost: per packet, as denylist_matches.
 */
INLINE bool prefilter_tc(const struct __sk_buff *skb, const struct packet *pkt, bool tagged)
{
	return (!prefiltered || tagged) && !tunnel_device(skb) && denylist_matches(&pkt->src);
}

#endif
