/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a packet's way through a hook can end. This enum is the only list: counters, events, CLI and docs read its names. */
#ifndef MYELIN_REASON_H
#define MYELIN_REASON_H

enum outcome {
	/* Ways on. */
	FORWARD_POD,     /* into a pod of this node */
	FORWARD_WIRE,    /* out of a wire, by host routing */
	FORWARD_TUNNEL,  /* to another node, encapsulated */
	FORWARD_STACK,   /* to the host's own stack */
	FORWARD_RESOLVE, /* out of a wire, the kernel resolving the neighbour */
	REPLY_ARP,       /* the gateway's MAC answered to a pod */
	REPLY_ND,
	REPLY_ICMP, /* an ICMP error instead of the packet */
	REPLY_RESET, /* a TCP reset instead of the packet */
	FORWARD_AUDIT, /* a policy denies the flow, which is only reported; the packet's way on is counted as well */

	/* Drops. */
	DROP_FIRST = 16,
	DROP_TRUNCATED = DROP_FIRST, /* shorter than its headers say */
	DROP_BAD_HEADER,             /* version, header length or total length make no sense */
	DROP_UNSUPPORTED_L2,         /* neither IPv4, IPv6 nor ARP */
	DROP_UNSUPPORTED_FAMILY,     /* a family that this node has switched off */
	DROP_VLAN,                   /* VLAN-tagged by a pod */
	DROP_NO_ENDPOINT,            /* from a link that belongs to no known pod */
	DROP_SPOOFED_MAC,
	DROP_SPOOFED_ADDRESS,
	DROP_SPOOFED_ARP, /* ARP that claims an address or MAC the pod doesn't have */
	DROP_SPOOFED_ND,
	DROP_ARP_TARGET,   /* ARP for something else than the gateway */
	DROP_ND_TARGET,    /* neighbour solicitation for something else than the gateway */
	DROP_ND_TYPE,      /* router discovery or redirect by a pod */
	DROP_MULTICAST,    /* to a multicast or broadcast address */
	DROP_MARTIAN,      /* to an address that no wire can carry: loopback, unspecified, link-local */
	DROP_TTL,          /* TTL or hop limit ran out */
	DROP_TOO_BIG,      /* larger than the path's MTU */
	DROP_NO_ROUTE,     /* the kernel has no route */
	DROP_BLACKHOLE,    /* a route says so: blackhole or prohibit */
	DROP_UNSUPPORTED_L4, /* masquerade knows no such protocol */
	DROP_NAT_NO_PORT,  /* no port of the node's is free for masquerade, or a Service's client */
	DROP_NAT_NO_ADDRESS, /* the wire has no address of the packet's family */
	DROP_FRAGMENT_FIRST_MISSING, /* the ports' fragment was not seen */
	DROP_EXTENSION_HEADERS, /* more IPv6 extension headers than are read */
	DROP_NO_TUNNEL_KEY,   /* into the tunnel, but no node is known there */
	DROP_REWRITE,      /* the kernel refused to change the packet */
	DROP_MAP_FULL,     /* no room for a flow that needs a row */
	DROP_NO_SERVICE,   /* to a Service's address, but no port of its */
	DROP_NO_BACKEND,   /* the Service has none */
	DROP_NO_LOCAL_BACKEND, /* the Service has none here, where its traffic policy wants one */
	DROP_SOURCE_RANGE, /* the Service is not for this client */
	DROP_BACKEND_GONE, /* the flow's backend is no more */
	DROP_SCTP_FRAGMENT, /* a fragment of SCTP, whose port would change */
	DROP_CROSS_FAMILY, /* the backend is of another family than the client */
	DROP_POLICY_DENIED,  /* a rule denies it */
	DROP_POLICY_NO_RULE, /* no rule allows it, and the endpoint is isolated */
	DROP_POLICY_PEER_UNKNOWN, /* from or to a pod that this node does not know yet */
	DROP_CROSS_FRAGMENT, /* a fragment, whose Service's backend is of another family */
	DROP_CROSS_OPTIONS,  /* a source route of IPv4, which means nothing to a backend of IPv6 */
	DROP_PREFILTER, /* from an address that may not come in at all */
	DROP_FRAGMENT_SHORT,   /* a first fragment without a whole layer-4 header */
	DROP_FRAGMENT_OVERLAP, /* a later fragment that overlaps the first one's layer-4 header */
	DROP_NO_CONNECTION,    /* a TCP segment of no connection that the pod's kernel knows */
	DROP_ICMP_UNRELATED,   /* an ICMP error about a packet that its receiver did not send */
	DROP_SPOOFED_OWN,      /* a wire brings a source address of this node or of its pods */
	DROP_TUNNEL_SOURCE,    /* the tunnel brings a source address that does not belong to the sending node */
	DROP_TUNNEL_PORT,      /* a pod sends to the nodes' tunnel port */
	DROP_DSR_UNTRUSTED,    /* an option of direct server return that does not come from a node, or names no backend of the Service */
	DROP_FLOW_LIMIT,       /* the endpoint has its share of the table of flows */
	OUTCOMES,
};

/*
 * What happens to a packet after a step that need not be the last one. Each drop reason (enum outcome, from DROP_FIRST on) is a value too.
 */
enum next {
	NEXT_FORWARD,  /* along the CPU's path */
	NEXT_CONTINUE, /* the step does not apply to the packet: go on with the following one */
	NEXT_NEW_FLOW, /* the packet's flow has no entry yet */
	NEXT_DROP = DROP_FIRST, /* this and above: for the reason with the number */
};

#endif
