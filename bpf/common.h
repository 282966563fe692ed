/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Basics that every header includes: types, the configuration, the clock. */
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

/* The configuration. Constant once the programs are loaded, so that the verifier removes the code of what is off. */
struct settings {
	__u8 ipv4;
	__u8 ipv6;
	__u8 tunnel;         /* enum tunnel_mode */
	__u8 legacy_routing; /* packets are forwarded by the host's stack */
	__u8 masquerade4;
	__u8 masquerade6;
	__u8 flow_always;      /* every flow has a conntrack entry */
	__u8 monitor;          /* events other than drops are sent while they are read (listening) */
	__u8 trace_all;        /* EVENT_TRACE is sent for every packet */
	__u8 socket_host_only; /* Services are translated at sockets of the host only */
	__u8 set_retval;       /* the kernel has bpf_set_retval */
	__u8 services;         /* Services are translated per packet, not only at sockets */
	__u8 lb_mode;          /* enum lb_mode */
	__u8 direct;           /* DSR is in use: by lb_mode, or by the mode of a Service */
	__u8 lb_dispatch;      /* enum lb_dispatch */
	__u8 rss4_bits;        /* length of the prefix rss4 of IPIP's outer source addresses; 0: the node's address */
	__u8 rss6_bits;
	__u8 bind_protection;  /* the host's own sockets can't bind the ports of Services */
	__u8 policy;           /* policies are enforced */
	__u8 host_policy;      /* policies of the node itself are enforced as well */
	__u8 policy_cut;       /* enum policy_cut */
	__u8 no_backend_drop;  /* packets to a Service without backends are dropped silently */
	__u8 prefilter;        /* there is a denylist */
	__u8 l7;               /* flows can be redirected to the proxy */
	__u8 l7_open;          /* new flows pass without L7 rules while the proxy does not run */
	__u8 dns_cache;        /* repeated DNS messages pass without the proxy */
	__u8 dns_reports;      /* they are reported by events */
	__u8 quic;             /* connection IDs select backends of Services with FRONTEND_QUIC */
	__u8 wire_any;         /* derived: a wire's sources do not matter (no masquerade, tunnel, strict_ingress) */
	__u8 wire_extra;       /* derived: from_wire_extra is needed (tunnel, prefilter, direct) */
	__u8 wire_mark;        /* derived: to_wire needs the mark of wire_mark_set (host_policy, node_encryption) */
	__u8 pod_fast;         /* derived: from_pod has a fast path (no legacy_routing, encryption) */
	__u8 wire_fast;        /* derived: from_wire has one (no prefilter, direct either) */
	__u8 outer_fast;       /* derived: it has one for outer packets, whose port nothing else uses */
	__u8 outer_proto;      /* protocol of outer packets, those of the tunnel or encrypted ones; 0: there are none */
	__u8 outer6;           /* they are IPv6 */
	__u8 netkit;           /* links of pods may be netkit devices */
	__u8 encryption;       /* prefixes may be reached by a device that encrypts */
	__u8 ipsec;            /* it is IPsec's */
	__u8 strict_egress;    /* nothing leaves in plain text for a prefix with PREFIX_STRICT */
	__u8 strict_ingress;   /* what should have been encrypted is dropped */
	__u8 node_encryption;  /* so is traffic between nodes themselves */
	__u8 bandwidth;        /* pods may have limits of their bandwidth */
	__u8 edt;              /* the kernel keeps the departure times of packets that are redirected (5.18) */
	__u8 no_verdicts;      /* no EVENT_FLOW_BEGIN is sent to Hubble: of verdicts, only drops are reported */
	__u32 tunnel_ifindex;
	__u32 vni;
	__u16 tunnel_port; /* UDP port of the tunnel, host byte order */
	__u16 outer_port;  /* UDP port of outer packets, host byte order; with outer_proto UDP */
	__u16 wireguard_port; /* first of the two UDP ports of WireGuard, host byte order; with node_encryption */
	__u32 hz;          /* jiffies per second */
	__u32 event_rate;  /* EVENT_DROP per second and CPU; 0: none */
	__u32 event_burst; /* EVENT_DROP per CPU at once; 0: event_rate */
	__u32 trace_rate;  /* other events per second and CPU */
	__u32 trace_burst; /* other events per CPU at once; 0: trace_rate */
	__u32 trace_slots; /* events that each CPU keeps in the map traces: a power of 2, or 0 */
	__u32 trace_seconds; /* between two EVENT_TRACE of a flow of another protocol than TCP */
	__u16 nat_port_min; /* NAT ports of masqueraded flows; host byte order, both ends included */
	__u16 nat_port_max;
	__u16 lb_port_min; /* NAT ports of SNATed clients of Services; host byte order, both ends included */
	__u16 lb_port_max;
	__u16 node_port_min; /* host byte order, both ends included */
	__u16 node_port_max;
	__u32 flow_entries;   /* size of flows */
	__u32 nat_entry_max;  /* size of nat_entries */
	__u32 path_shift;     /* 64 minus the number of bits of an index into paths */
	__u64 netns_cookie;   /* of the node's own network namespace */
	__u64 netkit_mark;    /* of packets that from_pod has processed on a netkit device; random */
	struct addr gateway4; /* the pods' gateway, mapped */
	struct addr gateway6;
	struct addr rss4; /* prefix of IPIP's outer source addresses, see rss4_bits */
	struct addr rss6;
};

volatile const struct settings config;

/* Which events are read, beside drops. */
enum listen {
	LISTEN_FLOWS = 1, /* EVENT_FLOW_BEGIN and EVENT_FLOW_END: a monitor is attached */
	LISTEN_TRACE = 2, /* EVENT_TRACE, EVENT_SOCKET, and EVENT_FLOW_BEGIN of flows with a policy's verdict: Hubble */
};

/* The events that are read (enum listen). Others are not sent. */
__u32 listening;

/* Set if flows of any endpoint have conntrack entries: by configuration, or because of a policy. */
__u32 tracking;

/* Set if a Service has a port on the node's own addresses that is outside the node port range. */
__u32 own_ports;

/*
 * Set while to_wire is attached to native wires only because the node checks the health of backends by DSR, so that all
 * other packets leave at once.
 */
__u32 probes_only;

/* What happens to an established flow that a new policy denies. */
enum policy_cut {
	CUT_RESET, /* a TCP connection is reset at both ends, other flows are dropped */
	CUT_DROP,
	CUT_LEAVE, /* the flow goes on */
};

/* How packets of clients outside the cluster are sent to a backend on another node. */
enum lb_mode {
	LB_SNAT,   /* from this node's address: replies come back to this node */
	LB_DSR,    /* from the client's address: the backend's node replies directly */
	LB_HYBRID, /* TCP as in LB_DSR, other protocols as in LB_SNAT */
};

/* How the backend's node learns the frontend in DSR mode. */
enum lb_dispatch {
	DISPATCH_OPTION, /* from an IP option of the packet */
	DISPATCH_IPIP,   /* the packet is encapsulated in IPIP */
	DISPATCH_GENEVE, /* the packet is encapsulated in Geneve */
};

enum hook {
	HOOK_FROM_POD,
	HOOK_TO_POD,
	HOOK_FROM_WIRE,
	HOOK_TO_WIRE,
	HOOK_FROM_WIRE_XDP,
	HOOK_FROM_PROXY,
	HOOKS = 8, /* a power of 2 */
};

/*
 * Returns jiffies, truncated to 32 bits: ages of up to 2^31 ticks (24 days at 1,000 Hz) compare correctly. Costs one
 * load, because the verifier inlines the helper.
 */
INLINE __u32 clock_now(void)
{
	return (__u32)bpf_jiffies64();
}

/*
 * Reads the gateway's address. A cast would drop volatile, and the compiler would take the configuration for the zeros
 * that it is compiled with.
 */
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
	/* A single store, as wide as the loads that read it. The datapath is little-endian only. */
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
 * Hashes an address to 64 bits, whose top bits are an index. The top bits of a product depend on all bits of its
 * factor, and most on the last octets of the address, which are the most significant ones here: adjacent addresses get
 * different indexes.
 */
INLINE __u64 addr_hash(const struct addr *a)
{
	return (a->d[0] + a->d[1]) * 0x9e3779b97f4a7c15ULL;
}

/* Hashes a pair of addresses. */
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
