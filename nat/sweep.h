/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Examining all ports of the pool if a connection can have none of its candidates, so that a free port is found as long
 * as there is one. Slow path: some 40 ns per port, at most SWEEP_PORTS ports in SWEEP_TICKS on each CPU.
 */
#ifndef MYELIN_SWEEP_H
#define MYELIN_SWEEP_H

#include "port.h"

#define SWEEP_PORTS 32768
#define SWEEP_TICKS (config.hz / 100 + 1)

/*
 * Returns the first free port of the range for the CPU's packet, or 0, within the CPU's budget. from may be above to:
 * the range is empty then. Defined in service/pool.h.
 */
int sweep_range(__u32 kind, __u32 from, __u32 to);

/* Returns a random start for a sweep. */
INLINE __u32 sweep_start(__u32 min, __u32 max)
{
	return min + ((__u64)bpf_get_prandom_u32() * (max - min + 1) >> 32);
}

#endif
