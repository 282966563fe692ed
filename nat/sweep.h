/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Looking at all ports of the pool, where a connection can have none of its candidates, so that a free port is found as long as there is one. Slow path:
 * some 40 ns a port, and no more than SWEEP_PORTS of them in SWEEP_TICKS on a CPU, whoever may cause it.
 */
#ifndef MYELIN_SWEEP_H
#define MYELIN_SWEEP_H

#include "port.h"

#define SWEEP_PORTS 32768
#define SWEEP_TICKS (config.hz / 100 + 1)

/* The first free port for the kind of the CPU's packet, 0 if there is none: service/pool.h. */
int sweep_range(__u32 kind, __u32 from, __u32 to);

/* The same within the CPU's budget. Nothing is looked at where from is above to. */
INLINE int sweep(struct port_budget *b, __u32 kind, __u32 from, __u32 to)
{
	__u32 now = clock_now(), looked;
	int port;

	if (now - b->tick > SWEEP_TICKS) {
		b->tick = now;
		b->left = SWEEP_PORTS;
	}
	if (from > to || !b->left)
		return 0;
	port = sweep_range(kind, from, to);
	looked = (port ? port : to) - from + 1;
	b->left = b->left > looked ? b->left - looked : 0;
	return port;
}

/* Where a sweep begins: anywhere. */
INLINE __u32 sweep_start(__u32 min, __u32 max)
{
	return min + ((__u64)bpf_get_prandom_u32() * (max - min + 1) >> 32);
}

#endif
