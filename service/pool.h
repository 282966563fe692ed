/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finds free ports in the pool that masquerading and Services share. Slow path: see nat/sweep.h. */
#ifndef MYELIN_POOL_H
#define MYELIN_POOL_H

#include "claim.h"

#define SWEEP_BLOCK 128  /* ports per function: the verifier follows each iteration */
#define SWEEP_BLOCKS 256 /* with SWEEP_BLOCK, half of all 65,536 ports */

/* Whether the port is free, or that of a closed connection, for the packet, which is to be masqueraded. */
APART int nat_free(__u32 port)
{
	struct cpu *c = cpu_this();
	struct flow *f;

	if (!c || port == port_search(c)->skip)
		return 0;
	nat_key(c, port);
	f = bpf_map_lookup_elem(&flows, &c->key);
	if (f && nat_rank(f, &c->pkt) > PORT_CLOSED)
		return 0;
	return !config.services || !port_crosses(PORT_MASQUERADE, port) || !nat_entry_port_used(c, port);
}

/* Whether the port is free, or that of a closed flow, for c->nat_entry. */
APART int nat_entry_port_free(__u32 port)
{
	struct cpu *c = cpu_this();
	struct nat_entry *t;

	if (!c || port == port_search(c)->skip)
		return 0;
	t = nat_entry_port_rival(c, port);
	return t ? nat_entry_rank(t, &c->pkt) <= PORT_CLOSED : !nat_entry_port_shared(c, port);
}

/* Returns the first free port of a block, 0 if there is none. */
APART int sweep_block(__u32 kind, __u32 from, __u32 to)
{
	__u32 i;

	for (i = 0; i < SWEEP_BLOCK; i++, from++) {
		if (from > to)
			break;
		if (kind == PORT_SERVICE ? nat_entry_port_free(from) : nat_free(from))
			return from;
	}
	return 0;
}

/* Renews the CPU's budget after SWEEP_TICKS. Returns what is left of it: a number of ports. */
INLINE __u32 sweep_budget(struct port_budget *b)
{
	__u32 now = clock_now();

	if (now - b->tick > SWEEP_TICKS) {
		b->tick = now;
		b->left = SWEEP_PORTS;
	}
	return b->left;
}

APART int sweep_range(__u32 kind, __u32 from, __u32 to)
{
	struct cpu *c = cpu_this();
	__u32 i, first = from, examined, left;
	int port = 0;

	if (!c || from > to)
		return 0;
	left = sweep_budget(&c->port_budget);
	if (!left)
		return 0;
	for (i = 0; i < SWEEP_BLOCKS && !port; i++, from += SWEEP_BLOCK) {
		if (from > to)
			break;
		port = sweep_block(kind, from, to);
	}
	examined = (port ? port : to) - first + 1;
	c->port_budget.left = left > examined ? left - examined : 0;
	return port;
}

#endif
