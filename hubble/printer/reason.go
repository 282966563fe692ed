package printer

import (
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

// Reason is why a flow was dropped, in Cilium's words: "Policy denied". Empty if it was not.
func Reason(f *flowpb.Flow) string {
	reason := f.GetDropReasonDesc()
	if reason == flowpb.DropReason_DROP_REASON_UNKNOWN {
		if f.GetVerdict() != flowpb.Verdict_DROPPED {
			return ""
		}
		return "Unknown reason"
	}
	for _, table := range []map[flowpb.DropReason]string{packetReasons(), stateReasons()} {
		if text := table[reason]; text != "" {
			return text
		}
	}
	text := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(reason.String(), "DROP_"), "_", " "))
	return strings.ToUpper(text[:1]) + text[1:]
}

// packetReasons are reasons of packets that are invalid, or that cannot be forwarded, in words other than those of the
// name.
func packetReasons() map[flowpb.DropReason]string {
	return map[flowpb.DropReason]string{
		flowpb.DropReason_INVALID_PACKET_DROPPED:                  "Invalid packet",
		flowpb.DropReason_CT_TRUNCATED_OR_INVALID_HEADER:          "CT: Truncated or invalid header",
		flowpb.DropReason_CT_MISSING_TCP_ACK_FLAG:                 "Fragmentation needed",
		flowpb.DropReason_CT_UNKNOWN_L4_PROTOCOL:                  "CT: Unknown L4 protocol",
		flowpb.DropReason_CT_CANNOT_CREATE_ENTRY_FROM_PACKET:      "CT: Can't create entry from packet",
		flowpb.DropReason_UNSUPPORTED_L3_PROTOCOL:                 "Unsupported L3 protocol",
		flowpb.DropReason_UNKNOWN_L4_PROTOCOL:                     "Unknown L4 protocol",
		flowpb.DropReason_UNKNOWN_ICMPV4_CODE:                     "Unknown ICMPv4 code",
		flowpb.DropReason_UNKNOWN_ICMPV4_TYPE:                     "Unknown ICMPv4 type",
		flowpb.DropReason_UNKNOWN_ICMPV6_CODE:                     "Unknown ICMPv6 code",
		flowpb.DropReason_UNKNOWN_ICMPV6_TYPE:                     "Unknown ICMPv6 type",
		flowpb.DropReason_INVALID_GENEVE_OPTION:                   "Invalid Geneve option",
		flowpb.DropReason_UNKNOWN_L3_TARGET_ADDRESS:               "Unknown L3 target address",
		flowpb.DropReason_STALE_OR_UNROUTABLE_IP:                  "Stale or unroutable IP",
		flowpb.DropReason_ERROR_WHILE_CORRECTING_L3_CHECKSUM:      "Error while correcting L3 checksum",
		flowpb.DropReason_ERROR_WHILE_CORRECTING_L4_CHECKSUM:      "Error while correcting L4 checksum",
		flowpb.DropReason_CT_MAP_INSERTION_FAILED:                 "CT: Map insertion failed",
		flowpb.DropReason_INVALID_IPV6_EXTENSION_HEADER:           "Invalid IPv6 extension header",
		flowpb.DropReason_IP_FRAGMENTATION_NOT_SUPPORTED:          "IP fragmentation not supported",
		flowpb.DropReason_NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT:     "No tunnel/encapsulation endpoint (datapath BUG!)",
		flowpb.DropReason_FAILED_TO_INSERT_INTO_PROXYMAP:          "NAT 46/64 not enabled",
		flowpb.DropReason_REACHED_EDT_RATE_LIMITING_DROP_HORIZON:  "Reached EDT rate-limiting drop horizon",
		flowpb.DropReason_UNSUPPORTED_L2_PROTOCOL:                 "Unsupported L2 protocol",
		flowpb.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE:           "No mapping for NAT masquerade",
		flowpb.DropReason_UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE: "Unsupported protocol for NAT masquerade",
		flowpb.DropReason_FIB_LOOKUP_FAILED:                       "FIB lookup failed",
	}
}

// stateReasons has the reasons of policies, Services, NAT and the state of the node.
func stateReasons() map[flowpb.DropReason]string {
	return map[flowpb.DropReason]string{
		flowpb.DropReason_NAT_NOT_NEEDED:                     "NAT not needed",
		flowpb.DropReason_IS_A_CLUSTERIP:                     "Is a ClusterIP",
		flowpb.DropReason_FORBIDDEN_ICMPV6_MESSAGE:           "Forbidden ICMPv6 message",
		flowpb.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK:       "Denied by LB src range check",
		flowpb.DropReason_POLICY_DENY:                        "Policy denied by denylist",
		flowpb.DropReason_VLAN_FILTERED:                      "VLAN traffic disallowed by VLAN filter",
		flowpb.DropReason_INVALID_VNI:                        "Incorrect VNI from VTEP",
		flowpb.DropReason_INVALID_TC_BUFFER:                  "Failed to update or lookup TC buffer",
		flowpb.DropReason_NO_SID:                             "No SID was found for the IP address",
		flowpb.DropReason_MISSING_SRV6_STATE:                 "SRv6 state was removed during tail call",
		flowpb.DropReason_NAT46:                              "L3 translation from IPv4 to IPv6 failed (NAT46)",
		flowpb.DropReason_NAT64:                              "L3 translation from IPv6 to IPv4 failed (NAT64)",
		flowpb.DropReason_AUTH_REQUIRED:                      "Authentication required",
		flowpb.DropReason_CT_NO_MAP_FOUND:                    "No conntrack map found",
		flowpb.DropReason_SNAT_NO_MAP_FOUND:                  "No nat map found",
		flowpb.DropReason_INVALID_CLUSTER_ID:                 "Invalid ClusterID",
		flowpb.DropReason_UNSUPPORTED_PROTOCOL_FOR_DSR_ENCAP: "Unsupported packet protocol for DSR encapsulation",
		flowpb.DropReason_NO_EGRESS_GATEWAY:                  "No egress gateway found",
		flowpb.DropReason_UNENCRYPTED_TRAFFIC:                "Traffic is unencrypted",
		flowpb.DropReason_TTL_EXCEEDED:                       "TTL exceeded",
		flowpb.DropReason_NO_NODE_ID:                         "No node ID found",
		flowpb.DropReason_IGMP_HANDLED:                       "IGMP handled",
		flowpb.DropReason_IGMP_SUBSCRIBED:                    "IGMP subscribed",
		flowpb.DropReason_DROP_HOST_NOT_READY:                "Host datapath not ready",
		flowpb.DropReason_DROP_EP_NOT_READY:                  "Endpoint policy program not available",
		flowpb.DropReason_DROP_NO_EGRESS_IP:                  "No Egress IP configured",
		flowpb.DropReason_DROP_PUNT_PROXY:                    "Punt to proxy",
	}
}
