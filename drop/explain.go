package drop

import (
	"slices"

	"myelin/bpf"
)

// outcomes are all that drop.h has, by number.
func outcomes() []Outcome {
	return slices.Concat(waysOn(), badPackets(), spoofed(), noWay(), noTranslation(), noService(), forbidden(),
		untrusted())
}

func waysOn() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeFORWARD_POD, "FORWARD_POD", "Went straight into a pod of this node.", ""},
		{bpf.DatapathOutcomeFORWARD_WIRE, "FORWARD_WIRE", "Left by a wire without passing the host's stack.", ""},
		{bpf.DatapathOutcomeFORWARD_TUNNEL, "FORWARD_TUNNEL", "Left for another node, encapsulated.", ""},
		{bpf.DatapathOutcomeFORWARD_STACK, "FORWARD_STACK", "Was given to the host's own stack.", ""},
		{bpf.DatapathOutcomeFORWARD_RESOLVE, "FORWARD_RESOLVE",
			"Left by a wire, the kernel resolving the neighbour first.", ""},
		{bpf.DatapathOutcomeREPLY_ARP, "REPLY_ARP", "A pod's ARP request for its gateway was answered.", ""},
		{bpf.DatapathOutcomeREPLY_ND, "REPLY_ND", "A pod's neighbour solicitation for its gateway was answered.", ""},
		{bpf.DatapathOutcomeREPLY_ICMP, "REPLY_ICMP",
			"The sender got an ICMP error instead: TTL ran out, packet too big, or no route.",
			"Usual for traceroute and path-MTU discovery. If it goes on, compare MTUs and routes."},
		{bpf.DatapathOutcomeREPLY_RESET, "REPLY_RESET",
			"The client got a TCP reset: the backend of its connection is no more, or a policy has come " +
				"that forbids it.", ""},
		{bpf.DatapathOutcomeFORWARD_AUDIT, "FORWARD_AUDIT",
			"A policy denies the flow, and was only audited: it went on.",
			"Allow it by a rule before audit mode ends: myelin policy trace says what decided."},
		{bpf.DatapathOutcomeFORWARD_QUIC, "FORWARD_QUIC",
			"Began a flow whose backend its QUIC connection ID named: the client's address has changed, or the flow " +
				"was another node's.", ""},
		{bpf.DatapathOutcomeFORWARD_PROXY, "FORWARD_PROXY",
			"Went to the proxy, which enforces rules by HTTP request, DNS name or TLS server name.", ""},
		{bpf.DatapathOutcomeFORWARD_DNS_QUERY, "FORWARD_DNS_QUERY",
			"A DNS query that the proxy has allowed before passed without the proxy.", ""},
		{bpf.DatapathOutcomeFORWARD_DNS_ANSWER, "FORWARD_DNS_ANSWER",
			"An answer with no other addresses than those that policies know passed without the proxy.", ""},
		{bpf.DatapathOutcomeFORWARD_ENCRYPT, "FORWARD_ENCRYPT",
			"Left for another node by the device of WireGuard or IPsec, which encrypts it.", ""},
	}
}

func badPackets() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_TRUNCATED, "DROP_TRUNCATED", "Shorter than its headers say.",
			"Find the sender by its MAC; something builds broken packets."},
		{bpf.DatapathOutcomeDROP_BAD_HEADER, "DROP_BAD_HEADER", "Version, header length or total length make no sense.",
			"Find the sender by its MAC; something builds broken packets."},
		{bpf.DatapathOutcomeDROP_UNSUPPORTED_L2, "DROP_UNSUPPORTED_L2", "Neither IPv4, IPv6 nor ARP.",
			"Pods have a layer-3 network; other protocols need one of their own."},
		{bpf.DatapathOutcomeDROP_UNSUPPORTED_FAMILY, "DROP_UNSUPPORTED_FAMILY",
			"Of a family that this node has switched off.",
			"Set ipv4.enabled or ipv6.enabled if pods should have it."},
		{bpf.DatapathOutcomeDROP_VLAN, "DROP_VLAN", "VLAN-tagged by a pod.",
			"Pods must not tag; make the VLAN on the node instead."},
		{bpf.DatapathOutcomeDROP_FRAGMENT_FIRST_MISSING, "DROP_FRAGMENT_FIRST_MISSING",
			"A later fragment came before the one that has the ports.",
			"Send smaller datagrams; if it is frequent, fragments are reordered or lost on the way."},
		{bpf.DatapathOutcomeDROP_EXTENSION_HEADERS, "DROP_EXTENSION_HEADERS",
			"More IPv6 extension headers than are read.", "No usual program sends so many; look at the sender."},
	}
}

func spoofed() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_NO_ENDPOINT, "DROP_NO_ENDPOINT", "From or to a pod that is not known.",
			"Usual for a moment while a pod is deleted. If it goes on: myelin endpoint list, and its status."},
		{bpf.DatapathOutcomeDROP_SPOOFED_MAC, "DROP_SPOOFED_MAC",
			"The pod's packet has another source MAC than the pod.",
			"Something in the pod changes MACs or bridges; that is refused."},
		{bpf.DatapathOutcomeDROP_SPOOFED_ADDRESS, "DROP_SPOOFED_ADDRESS",
			"The pod's packet has a source address that is not the pod's.",
			"Look for a tunnel, container or old address inside the pod; it must translate to the pod's own address."},
		{bpf.DatapathOutcomeDROP_SPOOFED_ARP, "DROP_SPOOFED_ARP",
			"The pod's ARP claims an address or MAC that it doesn't have.",
			"Something in the pod announces a foreign address (keepalived, a nested bridge); that is refused."},
		{bpf.DatapathOutcomeDROP_SPOOFED_ND, "DROP_SPOOFED_ND",
			"The pod's neighbour discovery claims an address or MAC that it doesn't have.",
			"Something in the pod announces a foreign address; that is refused."},
		{bpf.DatapathOutcomeDROP_ARP_TARGET, "DROP_ARP_TARGET",
			"The pod asked by ARP for something else than its gateway.",
			"The pod has a route of its own that skips the gateway: ip route in the pod."},
		{bpf.DatapathOutcomeDROP_ND_TARGET, "DROP_ND_TARGET", "The pod solicited something else than its gateway.",
			"The pod has a route of its own that skips the gateway: ip -6 route in the pod."},
		{bpf.DatapathOutcomeDROP_ND_TYPE, "DROP_ND_TYPE",
			"Router discovery or a redirect from a pod, or neighbour discovery behind extension headers.",
			"Usual when a pod starts: kernels ask for routers, and pods have their route already."},
	}
}

func noWay() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_MULTICAST, "DROP_MULTICAST", "To a multicast or broadcast address.",
			"Usual when a pod starts (MLD, mDNS). Multicast between pods is not supported."},
		{bpf.DatapathOutcomeDROP_MARTIAN, "DROP_MARTIAN",
			"To or from an address that no router forwards: loopback, unspecified or link-local.",
			"Look at what the pod sends to; a link-local metadata service must be given another way."},
		{bpf.DatapathOutcomeDROP_TTL, "DROP_TTL", "TTL or hop limit ran out, and no answer could be sent.",
			"Look for a routing loop; traceroute shows it."},
		{bpf.DatapathOutcomeDROP_TOO_BIG, "DROP_TOO_BIG", "Larger than the path's MTU, and no answer could be sent.",
			"Compare the pod's MTU with that of the path: myelin status, ip link in the pod."},
		{bpf.DatapathOutcomeDROP_NO_ROUTE, "DROP_NO_ROUTE",
			"No route to the destination; or it came encrypted, and no pod has the destination.",
			"ip route get DESTINATION on the node; myelin route list."},
		{bpf.DatapathOutcomeDROP_BLACKHOLE, "DROP_BLACKHOLE",
			"A route of the node says blackhole, unreachable or prohibit.",
			"Usual for an address of the node's podCIDR that no pod has; else ip route on the node."},
		{bpf.DatapathOutcomeDROP_NO_TUNNEL_KEY, "DROP_NO_TUNNEL_KEY", "Into the tunnel, but no node is known there.",
			"myelin route prefixes shows which prefixes have a node; is the Node object complete?"},
		{bpf.DatapathOutcomeDROP_REWRITE, "DROP_REWRITE", "The kernel refused to change the packet.",
			"The node may be out of memory for packets; look at its log."},
	}
}

func noService() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_NO_SERVICE, "DROP_NO_SERVICE", "To a Service's address, but to no port of its.",
			"myelin service list shows the ports; look at what the client is configured with."},
		{bpf.DatapathOutcomeDROP_NO_BACKEND, "DROP_NO_BACKEND",
			"The Service has no backend; the client was told so, unless serviceNoBackendResponse is drop.",
			"Are its pods ready, and does its selector find them? myelin service get NAME."},
		{bpf.DatapathOutcomeDROP_NO_LOCAL_BACKEND, "DROP_NO_LOCAL_BACKEND",
			"The Service has no backend on this node, where its traffic policy wants one.",
			"Send to a node that passes the Service's health check, or change externalTrafficPolicy or " +
				"internalTrafficPolicy."},
		{bpf.DatapathOutcomeDROP_SOURCE_RANGE, "DROP_SOURCE_RANGE", "The Service is not for this client.",
			"Add the client to loadBalancerSourceRanges, if it should have the Service."},
		{bpf.DatapathOutcomeDROP_BACKEND_GONE, "DROP_BACKEND_GONE",
			"The connection's backend is no more; the client got a TCP reset.",
			"Usual after a rollout; clients connect again."},
		{bpf.DatapathOutcomeDROP_SCTP_FRAGMENT, "DROP_SCTP_FRAGMENT",
			"A Service or masquerade changes the port of SCTP, whose checksum covers the whole packet, of which this " +
				"is a fragment.", "Let SCTP send no larger packets than the path's MTU: it looks for it by itself " +
				"unless told not to."},
		{bpf.DatapathOutcomeDROP_CROSS_FAMILY, "DROP_CROSS_FAMILY",
			"The backend is of another family than the client, and the packet can't be translated: it is a pod's, or " +
				"has IPv6 extension headers.",
			"Give the Service backends of the client's family."},
		{bpf.DatapathOutcomeDROP_CROSS_FRAGMENT, "DROP_CROSS_FRAGMENT",
			"A fragment to a Service whose backend is of another family than the client.",
			"Have the client send smaller datagrams, or give the Service backends of the client's family."},
		{bpf.DatapathOutcomeDROP_CROSS_OPTIONS, "DROP_CROSS_OPTIONS",
			"A source route of IPv4, or options that make no sense, to a Service whose backend is of IPv6.",
			"Usually a scan. Other options are left out."},
		{bpf.DatapathOutcomeDROP_PREFILTER, "DROP_PREFILTER",
			"From an address that myelin.policy.prefilter keeps out, whatever it asks for.",
			"Take the address out of the CiliumCIDRGroup that has it: myelin cidrgroup list."},
	}
}

func noTranslation() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_UNSUPPORTED_L4, "DROP_UNSUPPORTED_L4", "Masquerade knows no such protocol.",
			"TCP, UDP, SCTP and ICMP are translated; for others route pods natively (ipv4NativeRoutingCIDR)."},
		{bpf.DatapathOutcomeDROP_NAT_NO_PORT, "DROP_NAT_NO_PORT", "Every port that was tried for masquerade is taken.",
			"Widen myelin.nat.portRange, or use fewer connections to one destination: myelin flow list."},
		{bpf.DatapathOutcomeDROP_NAT_NO_ADDRESS, "DROP_NAT_NO_ADDRESS",
			"The wire has no address of the packet's family to masquerade to.",
			"Give the device an address of the family, or switch the family's masquerade off."},
		{bpf.DatapathOutcomeDROP_MAP_FULL, "DROP_MAP_FULL", "There was no room for the flow's row.",
			"Raise myelin.mapGrowthRatio, or bpf.ctTcpMax and bpf.ctAnyMax where these are set: myelin map list."},
		{bpf.DatapathOutcomeDROP_ENTRY_COPIED, "DROP_ENTRY_COPIED",
			"A TCP segment of a flow that began while conntrack or NAT entries were copied to larger tables, and " +
				"whose entry is not there yet.",
			"Usual for some milliseconds when tables grow: the segment is sent again."},
	}
}

func forbidden() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_POLICY_DENIED, "DROP_POLICY_DENIED", "A rule of a policy denies the flow.",
			"myelin policy trace names the rule."},
		{bpf.DatapathOutcomeDROP_POLICY_NO_RULE, "DROP_POLICY_NO_RULE",
			"A policy isolates the pod, and no rule allows the flow.",
			"myelin policy trace says which policies isolate it; allow the flow in one of them."},
		{bpf.DatapathOutcomeDROP_POLICY_PEER_UNKNOWN, "DROP_POLICY_PEER_UNKNOWN",
			"From or to a pod that this node does not know yet, where policies must know it.",
			"Usual for a moment when a pod is new: the sender tries again. If it goes on: is the Pod in what the " +
				"agent reads, with this address in its status?"},
	}
}

// untrusted are packets that claim what only the datapath, or another node, can know.
func untrusted() []Outcome {
	return []Outcome{
		{bpf.DatapathOutcomeDROP_FRAGMENT_SHORT, "DROP_FRAGMENT_SHORT",
			"A first fragment without a complete layer-4 header.",
			"No usual sender cuts a header in two (RFC 7112); find it by its MAC."},
		{bpf.DatapathOutcomeDROP_FRAGMENT_OVERLAP, "DROP_FRAGMENT_OVERLAP",
			"A later fragment overlaps the layer-4 header of the first one.",
			"Only an attack overwrites a header that was checked (RFC 3128); find the sender by its MAC."},
		{bpf.DatapathOutcomeDROP_NO_CONNECTION, "DROP_NO_CONNECTION",
			"A TCP segment of no connection that the pod's kernel knows, where policies must know which side " +
				"opened it.",
			"Usual for a late segment of a connection that was closed. If it goes on: something scans, or forges " +
				"segments."},
		{bpf.DatapathOutcomeDROP_ICMP_UNRELATED, "DROP_ICMP_UNRELATED",
			"An ICMP error about a packet that its receiver did not send, or of no flow.",
			"Usual for an error that comes late. If it goes on: find the sender by its MAC."},
		{bpf.DatapathOutcomeDROP_SPOOFED_OWN, "DROP_SPOOFED_OWN",
			"A wire brought a packet whose source is an address of this node or of one of its pods.",
			"Something on the network forges addresses, or sends packets back: find it by its MAC."},
		{bpf.DatapathOutcomeDROP_TUNNEL_SOURCE, "DROP_TUNNEL_SOURCE",
			"The tunnel or IPsec brought a packet that no node of the cluster sent, or with a source that is another " +
				"node's.",
			"Usual for a moment when a node is new. If it goes on: the Node must list the address that its tunnel " +
				"packets come from (myelin node list)."},
		{bpf.DatapathOutcomeDROP_TUNNEL_PORT, "DROP_TUNNEL_PORT",
			"A pod sent to the UDP port that tunnels between nodes use, and would have appeared as its node.",
			"Use another port in the pod, or another tunnelPort for the cluster."},
		{bpf.DatapathOutcomeDROP_DSR_UNTRUSTED, "DROP_DSR_UNTRUSTED",
			"An option of direct server return for a pod that is no backend of the Service, or for a flow that is " +
				"under way.",
			"Usual for a moment when a backend is new. With loadBalancer.dsrDispatch ipip or geneve only nodes can " +
				"send such packets."},
		{bpf.DatapathOutcomeDROP_NOT_ENCRYPTED, "DROP_NOT_ENCRYPTED",
			"Would have left in plain text for a prefix of strict encryption, or came in plain text from a node or " +
				"pod whose packets are encrypted.",
			"Usual for a moment when a node is new. If it goes on: the node has not published its key (myelin " +
				"encrypt status), or something forges addresses."},
		{bpf.DatapathOutcomeDROP_FLOW_LIMIT, "DROP_FLOW_LIMIT",
			"A new flow of a pod that has as many entries in a conntrack table as are left for all other pods.",
			"The pod opens flows faster than they end: myelin status names it. If that is right, raise " +
				"myelin.mapGrowthRatio, or bpf.ctTcpMax and bpf.ctAnyMax where these are set. If they come faster " +
				"than tables grow, set bpf.preallocateMaps."},
		{bpf.DatapathOutcomeDROP_NEW_FLOW_RATE, "DROP_NEW_FLOW_RATE",
			"A new flow of a Service that has begun more flows in this second than are left for all others, while " +
				"there is no room for NAT entries.",
			"A flood, or too small a table: myelin status says how full it is. Raise " +
				"myelin.mapGrowthRatio, or bpf.ctTcpMax and bpf.ctAnyMax where these are set; " +
				"Services with DSR and Maglev need no entries in a flood."},
		{bpf.DatapathOutcomeDROP_PROXY_DOWN, "DROP_PROXY_DOWN",
			"The flow is allowed only through the proxy, which enforces rules by HTTP request, DNS name or TLS " +
				"server name, and does not run.",
			"myelin status (L7 Proxy) says why it does not run."},
		{bpf.DatapathOutcomeDROP_BANDWIDTH, "DROP_BANDWIDTH",
			"A packet from or to a pod that exceeds the limit of the annotation kubernetes.io/egress-bandwidth or " +
				"ingress-bandwidth: more waits already than may wait.",
			"Usual where UDP is sent beyond the limit (myelin bandwidth list). Raise the limit if it is too low."},
	}
}
