/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* In the proxy's network namespace: connections to any address and port are the proxy's. */
#ifndef MYELIN_L7_ACCEPT_H
#define MYELIN_L7_ACCEPT_H

#include "l7.h"

/* Selects the proxy's listening socket. Cost: per connection. */
INLINE int l7_accept(struct bpf_sk_lookup *ctx)
{
	__u32 i = PROXY_LISTENER;
	struct bpf_sock *sk;
	long err;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_DROP;
	sk = bpf_map_lookup_elem(&proxy_sockets, &i);
	if (!sk)
		return SK_DROP;
	err = bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return err ? SK_DROP : SK_PASS;
}

#endif
