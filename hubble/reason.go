package hubble

import (
	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
)

// dropReason is Cilium's number for a drop reason, the nearest one where none means the same: Flow.extensions has the
// exact one. DROP_REASON_UNKNOWN stands for a reason that this program doesn't know.
func dropReason(o bpf.DatapathOutcome) flowpb.DropReason {
	for _, table := range []map[bpf.DatapathOutcome]flowpb.DropReason{
		packetReasons(), routeReasons(), natReasons(), policyReasons(),
	} {
		if r, ok := table[o]; ok {
			return r
		}
	}
	return flowpb.DropReason_DROP_REASON_UNKNOWN
}

// packetReasons are of packets that are wrong, or that their sender may not send.
func packetReasons() map[bpf.DatapathOutcome]flowpb.DropReason {
	return map[bpf.DatapathOutcome]flowpb.DropReason{
		bpf.DatapathOutcomeDROP_TRUNCATED:          flowpb.DropReason_INVALID_PACKET_DROPPED,
		bpf.DatapathOutcomeDROP_BAD_HEADER:         flowpb.DropReason_CT_TRUNCATED_OR_INVALID_HEADER,
		bpf.DatapathOutcomeDROP_UNSUPPORTED_L2:     flowpb.DropReason_UNSUPPORTED_L2_PROTOCOL,
		bpf.DatapathOutcomeDROP_UNSUPPORTED_FAMILY: flowpb.DropReason_UNSUPPORTED_L3_PROTOCOL,
		bpf.DatapathOutcomeDROP_VLAN:               flowpb.DropReason_VLAN_FILTERED,
		bpf.DatapathOutcomeDROP_NO_ENDPOINT:        flowpb.DropReason_UNKNOWN_SENDER,
		bpf.DatapathOutcomeDROP_SPOOFED_MAC:        flowpb.DropReason_INVALID_SOURCE_MAC,
		bpf.DatapathOutcomeDROP_SPOOFED_ADDRESS:    flowpb.DropReason_INVALID_SOURCE_IP,
		bpf.DatapathOutcomeDROP_SPOOFED_ARP:        flowpb.DropReason_INVALID_SOURCE_IP,
		bpf.DatapathOutcomeDROP_SPOOFED_ND:         flowpb.DropReason_FORBIDDEN_ICMPV6_MESSAGE,
		bpf.DatapathOutcomeDROP_ARP_TARGET:         flowpb.DropReason_UNKNOWN_L3_TARGET_ADDRESS,
		bpf.DatapathOutcomeDROP_ND_TARGET:          flowpb.DropReason_UNKNOWN_L3_TARGET_ADDRESS,
		bpf.DatapathOutcomeDROP_ND_TYPE:            flowpb.DropReason_FORBIDDEN_ICMPV6_MESSAGE,
		bpf.DatapathOutcomeDROP_EXTENSION_HEADERS:  flowpb.DropReason_INVALID_IPV6_EXTENSION_HEADER,
		bpf.DatapathOutcomeDROP_FRAGMENT_SHORT:     flowpb.DropReason_CT_TRUNCATED_OR_INVALID_HEADER,
		bpf.DatapathOutcomeDROP_FRAGMENT_OVERLAP:   flowpb.DropReason_INVALID_PACKET_DROPPED,
		bpf.DatapathOutcomeDROP_SPOOFED_OWN:        flowpb.DropReason_INVALID_SOURCE_IP,
		bpf.DatapathOutcomeDROP_BANDWIDTH:          flowpb.DropReason_REACHED_EDT_RATE_LIMITING_DROP_HORIZON,
		bpf.DatapathOutcomeDROP_ENTRY_COPIED:       flowpb.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
		bpf.DatapathOutcomeDROP_NOT_ENCRYPTED:      flowpb.DropReason_UNENCRYPTED_TRAFFIC,
		bpf.DatapathOutcomeDROP_TUNNEL_SOURCE:      flowpb.DropReason_UNKNOWN_SENDER,
		bpf.DatapathOutcomeDROP_TUNNEL_PORT:        flowpb.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED,
		bpf.DatapathOutcomeDROP_DSR_UNTRUSTED:      flowpb.DropReason_INVALID_PACKET_DROPPED,
		bpf.DatapathOutcomeDROP_NO_CONNECTION:      flowpb.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
		bpf.DatapathOutcomeDROP_ICMP_UNRELATED:     flowpb.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	}
}

// routeReasons are of packets that can't be forwarded. Number 136 is called CT_MISSING_TCP_ACK_FLAG in the API, and
// "Fragmentation needed" by Cilium's datapath and CLI.
func routeReasons() map[bpf.DatapathOutcome]flowpb.DropReason {
	return map[bpf.DatapathOutcome]flowpb.DropReason{
		bpf.DatapathOutcomeDROP_MULTICAST:     flowpb.DropReason_UNKNOWN_L3_TARGET_ADDRESS,
		bpf.DatapathOutcomeDROP_MARTIAN:       flowpb.DropReason_STALE_OR_UNROUTABLE_IP,
		bpf.DatapathOutcomeDROP_TTL:           flowpb.DropReason_TTL_EXCEEDED,
		bpf.DatapathOutcomeDROP_TOO_BIG:       flowpb.DropReason_CT_MISSING_TCP_ACK_FLAG,
		bpf.DatapathOutcomeDROP_NO_ROUTE:      flowpb.DropReason_FIB_LOOKUP_FAILED,
		bpf.DatapathOutcomeDROP_BLACKHOLE:     flowpb.DropReason_FIB_LOOKUP_FAILED,
		bpf.DatapathOutcomeDROP_NO_TUNNEL_KEY: flowpb.DropReason_NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT,
		bpf.DatapathOutcomeDROP_REWRITE:       flowpb.DropReason_ERROR_WRITING_TO_PACKET,
		bpf.DatapathOutcomeDROP_FRAGMENT_FIRST_MISSING: flowpb.
			DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND,
	}
}

// natReasons are of Services, masquerading and conntrack.
func natReasons() map[bpf.DatapathOutcome]flowpb.DropReason {
	return map[bpf.DatapathOutcome]flowpb.DropReason{
		bpf.DatapathOutcomeDROP_UNSUPPORTED_L4:   flowpb.DropReason_UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE,
		bpf.DatapathOutcomeDROP_NAT_NO_PORT:      flowpb.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
		bpf.DatapathOutcomeDROP_NAT_NO_ADDRESS:   flowpb.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
		bpf.DatapathOutcomeDROP_MAP_FULL:         flowpb.DropReason_CT_MAP_INSERTION_FAILED,
		bpf.DatapathOutcomeDROP_FLOW_LIMIT:       flowpb.DropReason_CT_MAP_INSERTION_FAILED,
		bpf.DatapathOutcomeDROP_NEW_FLOW_RATE:    flowpb.DropReason_DROP_RATE_LIMITED,
		bpf.DatapathOutcomeDROP_PROXY_DOWN:       flowpb.DropReason_SOCKET_LOOKUP_FAILED,
		bpf.DatapathOutcomeDROP_NO_SERVICE:       flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND,
		bpf.DatapathOutcomeDROP_NO_BACKEND:       flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND,
		bpf.DatapathOutcomeDROP_NO_LOCAL_BACKEND: flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND,
		bpf.DatapathOutcomeDROP_BACKEND_GONE:     flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND,
		bpf.DatapathOutcomeDROP_SOURCE_RANGE:     flowpb.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK,
		bpf.DatapathOutcomeDROP_SCTP_FRAGMENT:    flowpb.DropReason_IP_FRAGMENTATION_NOT_SUPPORTED,
		bpf.DatapathOutcomeDROP_CROSS_FAMILY:     flowpb.DropReason_NAT46,
		bpf.DatapathOutcomeDROP_CROSS_OPTIONS:    flowpb.DropReason_NAT46,
		bpf.DatapathOutcomeDROP_CROSS_FRAGMENT:   flowpb.DropReason_IP_FRAGMENTATION_NOT_SUPPORTED,
	}
}

// policyReasons has the reasons of policies and the denylist. As in Cilium, POLICY_DENY means that a rule denied the
// packet, and POLICY_DENIED that no rule allowed it.
func policyReasons() map[bpf.DatapathOutcome]flowpb.DropReason {
	return map[bpf.DatapathOutcome]flowpb.DropReason{
		bpf.DatapathOutcomeDROP_POLICY_DENIED:       flowpb.DropReason_POLICY_DENY,
		bpf.DatapathOutcomeDROP_POLICY_NO_RULE:      flowpb.DropReason_POLICY_DENIED,
		bpf.DatapathOutcomeDROP_POLICY_PEER_UNKNOWN: flowpb.DropReason_INVALID_IDENTITY,
		bpf.DatapathOutcomeDROP_PREFILTER:           flowpb.DropReason_POLICY_DENY,
	}
}
