/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Wires without an XDP program of their own: frames of a bond arrive on its ports, and frames of a VLAN device on the
 * device below it, with a tag. The tag is removed before the frame is parsed, put back if the frame is passed to the
 * stack, and replaced by that of the wire by which XDP sends the frame.
 */
#ifndef MYELIN_XDP_PORT_H
#define MYELIN_XDP_PORT_H

#include "cpu.h"
#include "vlan.h"

struct xdp_port {
	__u32 ifindex;
	__u32 vid; /* 0: no tag, or a priority tag */
};

/* Ifindex of the wire, by device and VLAN of arriving frames. Read if xdp_map_ports is set: then it has all wires. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct xdp_port);
	__type(value, __u32);
} xdp_ports SEC(".maps");

/* VID of frames, by ifindex of the VLAN device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} xdp_vids SEC(".maps");

/* Set if a wire with XDP is a bond or a VLAN device. */
__u32 xdp_map_ports;

/* An Ethernet header with an 802.1Q tag. */
struct tagged_frame {
	__u32 macs[3];
	__be16 type;
	__be16 tci;
	__be16 inner;
	__be16 pad;
};

/*
 * Sets c->wire, and moves the frame's tag to c->tag. Returns 0 if the frame belongs to no wire: the stack gets it as it
 * arrived. Cost: per packet if xdp_map_ports is set, one lookup.
 */
APART int xdp_port_enter(struct xdp_md *ctx)
{
	struct tagged_frame *frame = (void *)(long)ctx->data;
	struct xdp_port port = { .ifindex = ctx->ingress_ifindex };
	struct cpu *c = cpu_this();
	__u32 macs[3], *wire;
	bool tagged;

	if (!c || (void *)(frame + 1) > (void *)(long)ctx->data_end)
		return 0;
	tagged = frame->type == bpf_htons(ETH_P_8021Q);
	if (tagged)
		port.vid = bpf_ntohs(frame->tci) & VLAN_VID;
	wire = bpf_map_lookup_elem(&xdp_ports, &port);
	if (!wire)
		return 0;
	c->wire = *wire;
	c->tag = 0;
	if (!tagged)
		return 1;
	__builtin_memcpy(macs, frame->macs, sizeof(macs));
	c->tag = *(__u32 *)&frame->type;
	if (bpf_xdp_adjust_head(ctx, sizeof(c->tag)))
		return 0;
	frame = (void *)(long)ctx->data;
	if ((void *)&frame->tci > (void *)(long)ctx->data_end)
		return 0;
	__builtin_memcpy(frame->macs, macs, sizeof(macs));
	return 1;
}

/*
 * Writes the tag of a frame that xdp_port_enter accepted: the one that it had if the stack gets it, and that of the
 * wire c->path otherwise. Returns the program's result. Cost: as xdp_port_enter.
 */
APART int xdp_port_leave(struct xdp_md *ctx, int verdict)
{
	struct cpu *c = cpu_this();
	struct tagged_frame *frame;
	__u32 macs[3], *vid;

	if (!c || verdict == XDP_DROP)
		return XDP_DROP;
	if (verdict != XDP_PASS) {
		vid = bpf_map_lookup_elem(&xdp_vids, &c->path.ifindex);
		c->tag = vid ? bpf_htonl(ETH_P_8021Q << 16 | *vid) : 0;
	}
	if (!c->tag)
		return verdict;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(c->tag)))
		return XDP_DROP;
	frame = (void *)(long)ctx->data;
	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(macs, (void *)frame + sizeof(c->tag), sizeof(macs));
	__builtin_memcpy(frame->macs, macs, sizeof(macs));
	*(__u32 *)&frame->type = c->tag;
	return verdict;
}

/* Returns the wire on which the frame arrived. Without the barrier, the compiler selects an address to load from. */
INLINE __u32 xdp_wire(const struct xdp_md *ctx, const struct cpu *c)
{
	__u32 wire = ctx->ingress_ifindex;

	barrier_var(wire);
	return unlikely(xdp_map_ports) ? c->wire : wire;
}

#endif
