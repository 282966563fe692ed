/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The outcomes of a packet in a hook. This enum is the only list: counters, events, CLI and docs use its names. */
#ifndef MYELIN_REASON_H
#define MYELIN_REASON_H

enum outcome {
	/* Forwarded, or replied to. */
	FORWARD_POD,     /* into a pod of this node */
	FORWARD_WIRE,    /* out of a wire, redirected by the datapath */
	FORWARD_TUNNEL,  /* to another node, encapsulated */
	FORWARD_STACK,   /* to the host's own stack */
	FORWARD_RESOLVE, /* out of a wire, after the kernel has resolved the neighbour */
	REPLY_ARP,       /* a pod's ARP request for the gateway was answered */
	REPLY_ND,        /* a pod's neighbour solicitation for the gateway was answered */
	REPLY_ICMP,      /* an ICMP error was sent for a dropped packet */
	REPLY_RESET,     /* a TCP reset was sent for a dropped packet */
	FORWARD_AUDIT,   /* denied in audit mode, which only reports; the packet's actual outcome is counted too */
	FORWARD_QUIC,    /* a new flow, whose connection ID selected the backend; its outcome is counted too */
	FORWARD_PROXY,   /* to the proxy, which enforces L7 rules */
	FORWARD_DNS_QUERY,  /* a query that the proxy has allowed before, handed back by its device without it */
	FORWARD_DNS_ANSWER, /* an answer from which the proxy would learn nothing, in the same way */
	FORWARD_ENCRYPT,    /* to another node, by a device that encrypts */

	/* Drops. */
	DROP_FIRST = 16,
	DROP_TRUNCATED = DROP_FIRST, /* shorter than its headers say */
	DROP_BAD_HEADER,             /* version, header length or total length is invalid */
	DROP_UNSUPPORTED_L2,         /* neither IPv4, IPv6 nor ARP */
	DROP_UNSUPPORTED_FAMILY,     /* a family that is disabled on this node */
	DROP_VLAN,                   /* VLAN-tagged by a pod */
	DROP_NO_ENDPOINT,            /* from a link that belongs to no known pod */
	DROP_SPOOFED_MAC,            /* the source MAC is not the pod's */
	DROP_SPOOFED_ADDRESS,        /* the source address is not the pod's */
	DROP_SPOOFED_ARP, /* ARP with an address or MAC that is not the pod's */
	DROP_SPOOFED_ND,   /* neighbour discovery with an address or MAC that is not the pod's */
	DROP_ARP_TARGET,   /* ARP other than a request for the gateway */
	DROP_ND_TARGET,    /* neighbour solicitation for another address than the gateway's */
	DROP_ND_TYPE,      /* router discovery or redirect by a pod, or any of these behind extension headers */
	DROP_MULTICAST,    /* to a multicast or broadcast address */
	DROP_MARTIAN,      /* to or from an address that no router forwards: loopback, unspecified, link-local */
	DROP_TTL,          /* TTL or hop limit exceeded */
	DROP_TOO_BIG,      /* larger than the path's MTU */
	DROP_NO_ROUTE,     /* the kernel has no route */
	DROP_BLACKHOLE,    /* the route is of type blackhole or prohibit */
	DROP_UNSUPPORTED_L4, /* masquerading does not support the protocol */
	DROP_NAT_NO_PORT,  /* no NAT port is free */
	DROP_NAT_NO_ADDRESS, /* the wire has no address of the packet's family */
	DROP_FRAGMENT_FIRST_MISSING, /* a later fragment, and its first one was not seen */
	DROP_EXTENSION_HEADERS, /* more IPv6 extension headers than are parsed */
	DROP_NO_TUNNEL_KEY,   /* to the tunnel device, but no node is known for the destination */
	DROP_REWRITE,      /* the kernel refused to modify the packet */
	DROP_MAP_FULL,     /* no room for the conntrack entry that the flow needs */
	DROP_NO_SERVICE,   /* to a Service's address, but none of its ports */
	DROP_NO_BACKEND,   /* the Service has no backend */
	DROP_NO_LOCAL_BACKEND, /* traffic policy Local, and no backend on this node */
	DROP_SOURCE_RANGE, /* the client is not in the Service's source ranges */
	DROP_BACKEND_GONE, /* the flow's backend was removed */
	DROP_SCTP_FRAGMENT, /* an SCTP fragment that needs other ports */
	DROP_CROSS_FAMILY, /* the backend is of another family than the client */
	DROP_POLICY_DENIED,  /* a rule denies it */
	DROP_POLICY_NO_RULE, /* no rule allows it, and the endpoint is isolated */
	DROP_POLICY_PEER_UNKNOWN, /* from or to a pod that this node does not know yet */
	DROP_CROSS_FRAGMENT, /* a fragment to a backend of another family */
	DROP_CROSS_OPTIONS,  /* an IPv4 source route, to an IPv6 backend */
	DROP_PREFILTER, /* from a denylisted address */
	DROP_FRAGMENT_SHORT,   /* a first fragment without a whole layer-4 header */
	DROP_FRAGMENT_OVERLAP, /* a later fragment that overlaps the first one's layer-4 header */
	DROP_NO_CONNECTION,    /* a TCP segment of no connection that the pod's kernel knows */
	DROP_ICMP_UNRELATED,   /* an ICMP error about a packet that its receiver did not send */
	DROP_SPOOFED_OWN,      /* from a wire, with the source address of this node or of its pods */
	DROP_TUNNEL_SOURCE,    /* from the tunnel or IPsec, with a source that does not belong to the sending node */
	DROP_TUNNEL_PORT,      /* from a pod, to the UDP port of the tunnel */
	DROP_DSR_UNTRUSTED,    /* DSR option that is not from a node, or for a pod that is no backend of the Service */
	DROP_FLOW_LIMIT,       /* the endpoint has used up its share of conntrack entries */
	DROP_NEW_FLOW_RATE,    /* no room for a NAT entry, and the Service has begun more than its share of flows */
	DROP_PROXY_DOWN,       /* the flow must pass through the proxy, which does not run */
	DROP_NOT_ENCRYPTED,    /* would leave in plain text, or came so, and strict encryption is on */
	DROP_BANDWIDTH,        /* would wait for longer than the limit of a pod's bandwidth allows */
	DROP_ENTRY_COPIED,     /* a TCP segment whose entry is being copied to a table of another size */
	OUTCOMES,
};

/*
 * The result of a step of packet processing that need not be the last one. Drop reasons (enum outcome, from DROP_FIRST
 * on) are values too.
 */
enum next {
	NEXT_FORWARD,  /* forward along c->path; of a parser or a check, that nothing speaks against it */
	NEXT_CONTINUE, /* the step does not apply to the packet: continue with the next one */
	NEXT_NEW_FLOW, /* the packet's flow has no entry yet */
	NEXT_PROXY,    /* forward to the proxy */
	NEXT_DROP = DROP_FIRST, /* this and above: drop for the reason with that number */
};

#endif
