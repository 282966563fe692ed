/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the host sends to pods: replies of Services, policies, conntrack. */
#ifndef MYELIN_SERVICE_TO_POD_H
#define MYELIN_SERVICE_TO_POD_H

#include "translate.h"
#include "../flow/track.h"

/* Handles a packet that the host sends to a pod. Returns a verdict. Cost: per packet of the host. */
INLINE int host_deliver(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome = NEXT_CONTINUE;

	if (!c || packet_parse(skb, &c->pkt, HOOK_TO_POD) != PARSED_IP || packet_family_off(&c->pkt))
		return TC_ACT_OK;
	if (config.services)
		outcome = service_to_pod(skb, c);
	if (config.policy && tracking && outcome == NEXT_CONTINUE)
		outcome = enforce_to_pod(skb); /* for a reply of a Service it was done for the request */
	if (outcome >= NEXT_DROP)
		return drop(skb, c, outcome);
	if (to_pod_tracked(c, outcome))
		track_to_pod(skb);
	return TC_ACT_OK;
}

#endif
