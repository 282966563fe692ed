/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/*
 * Ends connected UDP sockets whose backend has gone: an iterator over the UDP sockets of one network namespace. It is
 * not part of the datapath, as kernels before 6.5 couldn't load it. Cost: slow path, per UDP socket of the namespace.
 */
#include "../origin.h"

#define CONNECTED 1 /* TCP_ESTABLISHED of linux/tcp_states.h, which UDP sockets with a peer are in too */
#define AF_INET 2

/* What is asked of the kernel's own structures; the loader finds where it is. */
struct sock_common {
	__be32 skc_daddr;
	__be16 skc_dport;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
} __attribute__((preserve_access_index));

struct bpf_iter__udp {
	struct sock_common *udp_sk; /* struct udp_sock, which begins with it */
} __attribute__((preserve_access_index));

extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

__u64 ended; /* sockets, since the program was loaded */

INLINE void peer_read(const struct sock_common *sk, struct addr *a)
{
	if (sk->skc_family == AF_INET) {
		addr_map4(a, sk->skc_daddr);
		return;
	}
	a->w[0] = sk->skc_v6_daddr.in6_u.u6_addr32[0];
	a->w[1] = sk->skc_v6_daddr.in6_u.u6_addr32[1];
	a->w[2] = sk->skc_v6_daddr.in6_u.u6_addr32[2];
	a->w[3] = sk->skc_v6_daddr.in6_u.u6_addr32[3];
}

SEC("iter/udp")
int destroy(struct bpf_iter__udp *ctx)
{
	struct sock_common *sk = ctx->udp_sk;
	struct origin_key key = {};
	struct origin *asked;

	if (!sk || sk->skc_state != CONNECTED)
		return 0;
	key.cookie = bpf_get_socket_cookie(sk);
	key.port = sk->skc_dport;
	peer_read(sk, &key.addr);
	asked = bpf_map_lookup_elem(&origins, &key);
	if (!asked || !asked->backend || bpf_map_lookup_elem(&backends, &asked->backend))
		return 0;
	if (!bpf_sock_destroy(sk))
		ended++;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
