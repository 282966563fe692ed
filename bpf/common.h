/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What every feature's header stands on: types, the configuration, the clock. */
#ifndef MYELIN_COMMON_H
#define MYELIN_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define INLINE static __always_inline

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* An IPv6 address, or an IPv4 address mapped into IPv6 (RFC 4291, 2.5.5.2). */
struct addr {
	union {
		__u8 b[16];
		__be32 w[4];
		__u64 d[2];
	};
};

struct mac {
	__u8 b[ETH_ALEN];
};

enum tunnel_mode {
	TUNNEL_NONE,
	TUNNEL_IPV4, /* the outer header is IPv4 */
	TUNNEL_IPV6,
};

/* Fixed when the programs are loaded: the verifier removes what is off. */
struct settings {
	__u8 ipv4;
	__u8 ipv6;
	__u8 tunnel;         /* enum tunnel_mode */
	__u8 legacy_routing; /* forward through the host's stack */
	__u8 masquerade4;
	__u8 masquerade6;
	__u8 flow_always; /* a flow row for every connection */
	__u8 monitor;     /* events of flows, not only of drops, while somebody listens */
	__u8 socket_host_only; /* Services at the socket for the host's own only */
	__u8 set_retval;       /* the kernel has bpf_set_retval */
	__u8 services;         /* Services for each packet, not only at sockets */
	__u8 lb_mode;          /* enum lb_mode */
	__u8 direct;           /* answers may be direct: by lb_mode, or by that of some Service */
	__u8 lb_dispatch;      /* enum lb_dispatch */
	__u8 rss4_bits;        /* length of the prefix that senders of IPIP are taken from; 0: the node's address is */
	__u8 rss6_bits;
	__u8 bind_protection;  /* the host's own sockets can't bind the ports of Services */
	__u8 policy;           /* policies are enforced */
	__u8 host_policy;      /* … those of the node itself as well */
	__u8 policy_cut;       /* enum policy_cut */
	__u8 no_backend_drop;  /* clients of a Service without backends are told nothing */
	__u8 prefilter;        /* some addresses may not come in at all */
	__u8 wire_any;         /* derived: a wire's packets are forwarded alike whatever their source (no masquerade, no tunnel) */
	__u8 wire_extra;       /* derived: a wire's packet may be more than one for a pod (tunnel, prefilter, direct) */
	__u32 tunnel_ifindex;
	__u32 vni;
	__u16 tunnel_port; /* UDP port of the tunnel, host byte order */
	__u32 hz;          /* jiffies a second */
	__u32 event_rate;  /* drop events a second and CPU; 0: none */
	__u16 nat_port_min; /* host byte order, both ends included */
	__u16 nat_port_max;
	__u16 lb_port_min; /* of Services' clients behind a node's address */
	__u16 lb_port_max;
	__u16 node_port_min;
	__u16 node_port_max;
	__u32 flow_entries; /* room in the tables of flows … */
	__u32 nat_entry_max;
	__u32 path_shift;  /* 64 less the bits of an index of the table of paths */
	__u64 netns_cookie; /* of the node's own network namespace */
	struct addr gateway4; /* the address that answers pods, mapped */
	struct addr gateway6;
	struct addr rss4;
	struct addr rss6;
};

volatile const struct settings config;

/* Set while somebody watches flows: their events are not even made for nobody. */
__u32 listening;

/* Set where some endpoint's flows have rows: by configuration, or by a policy. */
__u32 tracking;

/* Set where a Service has a port of the node's own addresses that is no node port. */
__u32 own_ports;

/* What becomes of a flow that a policy comes to forbid. */
enum policy_cut {
	CUT_RESET, /* both ends are told, where TCP can tell */
	CUT_DROP,
	CUT_LEAVE, /* it goes on */
};

/* How clients outside get to a backend on another node. */
enum lb_mode {
	LB_SNAT,   /* from this node's address: the answer comes back here */
	LB_DSR,    /* from their own: the backend's node answers */
	LB_HYBRID, /* TCP as LB_DSR, others as LB_SNAT */
};

/* How the backend's node learns what the client asked for. */
enum lb_dispatch {
	DISPATCH_OPTION, /* by an option of the packet */
	DISPATCH_IPIP,   /* … inside of another one */
	DISPATCH_GENEVE,
};

enum hook {
	HOOK_FROM_POD,
	HOOK_TO_POD,
	HOOK_FROM_WIRE,
	HOOK_TO_WIRE,
	HOOK_FROM_WIRE_XDP,
	HOOKS = 8, /* a power of 2 */
};

/* Jiffies, cut to 32 bits: ages up to 2^31 ticks compare right (24 days at 1,000 Hz). Costs one load: the verifier inlines it. */
INLINE __u32 clock_now(void)
{
	return (__u32)bpf_jiffies64();
}

/* Reads the gateway's addresses. Never by a cast: without volatile the compiler takes the configuration for the zeros that it is compiled as. */
INLINE void gateway_addr(struct addr *a, bool ipv6)
{
	a->d[0] = ipv6 ? config.gateway6.d[0] : config.gateway4.d[0];
	a->d[1] = ipv6 ? config.gateway6.d[1] : config.gateway4.d[1];
}

/* True if the tick a comes before the tick b. */
INLINE bool clock_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

INLINE void addr_map4(struct addr *a, __be32 v4)
{
	/* One store, as it will be read: the datapath is little-endian only. */
	a->d[0] = 0;
	a->d[1] = (__u64)v4 << 32 | bpf_htonl(0xffff);
}

INLINE bool addr_is4(const struct addr *a)
{
	return a->d[0] == 0 && a->w[2] == bpf_htonl(0xffff);
}

INLINE bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->d[0] == b->d[0] && a->d[1] == b->d[1];
}

/*
 * An address in 64 bits, of which the top ones make an index. The top bits of a product depend on all bits of its factor, and most on the last octets of
 * the address, which are the highest here: neighbours get rows of their own.
 */
INLINE __u64 addr_hash(const struct addr *a)
{
	return (a->d[0] + a->d[1]) * 0x9e3779b97f4a7c15ULL;
}

/* … and of two. */
INLINE __u64 addr_pair_hash(const struct addr *src, const struct addr *dst)
{
	return addr_hash(dst) + (src->d[0] + src->d[1]) * 0xbf58476d1ce4e5b9ULL;
}

INLINE bool addr_is_zero(const struct addr *a)
{
	return !a->d[0] && !a->d[1];
}

INLINE bool mac_is_zero(const struct mac *a)
{
	return !*(const __u32 *)a->b && !*(const __u16 *)(a->b + 4);
}

INLINE bool mac_equal(const struct mac *a, const __u8 *b)
{
	return *(const __u32 *)a->b == *(const __u32 *)b && *(const __u16 *)(a->b + 4) == *(const __u16 *)(b + 4);
}

#endif
