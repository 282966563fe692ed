/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Frames with a VLAN tag that are the wire's own all the same. Slow path. */
#ifndef MYELIN_VLAN_H
#define MYELIN_VLAN_H

#include "cpu.h"

#define VLAN_VID 0x0fff /* of a tag */

/*
 * Takes a priority tag (802.1Q, VID 0) off the frame, which the kernel treats as if it had none, and parses it. Returns how it was parsed, PARSED_OTHER
 * for frames of a VLAN, which are their VLAN device's, or PARSED_BAD for a tag in a tag.
 */
APART int vlan_untag(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || skb->vlan_tci & VLAN_VID)
		return PARSED_OTHER;
	if (bpf_skb_vlan_pop(skb) || skb->vlan_present)
		return PARSED_BAD;
	return packet_parse(skb, &c->pkt, HOOK_FROM_WIRE);
}

#endif
