/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Policies for flows that packets are translated for: they judge the client and the backend, whatever the client asked for. */
#ifndef MYELIN_SERVICE_JUDGE_H
#define MYELIN_SERVICE_JUDGE_H

#include "translation.h"
#include "../flow/judge.h"

INLINE __u16 judge_slot(const struct addr *a)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, a);

	return e ? e->slot : 0;
}

/* Asks about the flow whose row has the CPU's key, unless that has the answer. Returns 0 or a drop reason. Cost: per flow. */
APART int service_judge(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct policy_ask *ask;
	struct translation *t;
	int outcome;

	if (!c)
		return DROP_POLICY_NO_RULE;
	t = bpf_map_lookup_elem(&translations, &c->place);
	if (!t || t->judged == c->path.epoch)
		return t ? 0 : DROP_POLICY_NO_RULE;
	ask = &c->ask;
	ask->src = t->client;
	ask->dst = t->backend;
	ask->src_slot = judge_slot(&t->client);
	ask->dst_slot = judge_slot(&t->backend);
	ask->port = bpf_ntohs(t->backend_port);
	ask->proto = c->place.proto;
	ask->reply = false;
	ask->cut = t->judged || t->packets[SIDE_CLIENT] + t->packets[SIDE_BACKEND] > 1; /* it may have begun before any policy was asked */
	outcome = judge_outcome(skb, c, policy_judge(ask));
	if (!outcome)
		t->judged = c->path.epoch;
	else if (!ask->cut)
		bpf_map_delete_elem(&translations, &c->place); /* it doesn't begin */
	return outcome;
}

#endif
