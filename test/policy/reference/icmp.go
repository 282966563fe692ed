package reference

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/intstr"

	"myelin/policy/ciliumv2"
)

// ciliumICMP says by what a type of ICMP messages matches; empty: it doesn't. No
// family is IPv4.
func (f flow) ciliumICMP(field ciliumv2.ICMPField) string {
	proto, types := uint8(protoICMP), icmpTypes()
	if field.Family == "IPv6" {
		proto, types = protoICMPv6, icmpv6Types()
	}
	if f.proto != proto || field.Type == nil {
		return ""
	}
	if number, known := types[field.Type.StrVal]; known && number == f.port {
		return "name"
	}
	if field.Type.Type == intstr.Int && field.Type.IntVal == int32(f.port) ||
		field.Type.StrVal == strconv.Itoa(int(f.port)) {
		return "number"
	}
	return ""
}

// icmpTypes are the names that Cilium has for types of ICMP (RFC 792, RFC 1256,
// RFC 2521, RFC 8335).
func icmpTypes() map[string]uint16 {
	return map[string]uint16{
		"EchoReply": 0, "DestinationUnreachable": 3, "Redirect": 5, "Echo": 8, "EchoRequest": 8,
		"RouterAdvertisement": 9,
		"RouterSelection":     10, "TimeExceeded": 11, "ParameterProblem": 12, "Timestamp": 13, "TimestampReply": 14,
		"Photuris": 40, "ExtendedEchoRequest": 42, "ExtendedEchoReply": 43,
	}
}

// icmpv6Types are those of ICMPv6 (RFC 4443, RFC 4861 and others).
func icmpv6Types() map[string]uint16 {
	return map[string]uint16{
		"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "ParameterProblem": 4, "EchoRequest": 128,
		"EchoReply": 129, "MulticastListenerQuery": 130, "MulticastListenerReport": 131, "MulticastListenerDone": 132,
		"RouterSolicitation": 133, "RouterAdvertisement": 134, "NeighborSolicitation": 135,
		"NeighborAdvertisement": 136,
		"RedirectMessage":       137, "RouterRenumbering": 138, "ICMPNodeInformationQuery": 139,
		"ICMPNodeInformationResponse":          140,
		"InverseNeighborDiscoverySolicitation": 141, "InverseNeighborDiscoveryAdvertisement": 142,
		"HomeAgentAddressDiscoveryRequest": 144, "HomeAgentAddressDiscoveryReply": 145, "MobilePrefixSolicitation": 146,
		"MobilePrefixAdvertisement": 147, "DuplicateAddressRequestCodeSuffix": 157,
		"DuplicateAddressConfirmationCodeSuffix": 158, "ExtendedEchoRequest": 160, "ExtendedEchoReply": 161,
	}
}
