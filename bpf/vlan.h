/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Frames with a priority tag, which belong to the wire and not to a VLAN. Slow path. */
#ifndef MYELIN_VLAN_H
#define MYELIN_VLAN_H

#include "cpu.h"

#define VLAN_VID 0x0fff /* mask of the VLAN identifier in a tag */

/*
 * Removes a priority tag (802.1Q, VID 0), which the kernel ignores, and parses the frame. Returns the result of
 * packet_parse, PARSED_OTHER for frames of a VLAN, which belong to its VLAN device, or PARSED_BAD for two tags.
 */
APART enum parsed vlan_untag(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();

	if (!c || skb->vlan_tci & VLAN_VID)
		return PARSED_OTHER;
	if (bpf_skb_vlan_pop(skb) || skb->vlan_present)
		return PARSED_BAD;
	return packet_parse(skb, &c->pkt, HOOK_FROM_WIRE);
}

#endif
