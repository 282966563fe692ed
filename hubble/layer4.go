package hubble

import (
	"fmt"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
	"myelin/event"
)

// layer4 is nil for protocols that Hubble doesn't have, and for later fragments.
func layer4(r *event.Raw, v *view) *flowpb.Layer4 {
	if r.Family != 4 && r.Family != 6 {
		return nil
	}
	source, destination := uint32(v.src.Port()), uint32(v.dst.Port())
	switch r.Proto {
	case protoTCP:
		return &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{
			SourcePort: source, DestinationPort: destination, Flags: tcpFlags(r.TcpFlags),
		}}}
	case protoUDP:
		return &flowpb.Layer4{Protocol: &flowpb.Layer4_UDP{UDP: &flowpb.UDP{
			SourcePort: source, DestinationPort: destination,
		}}}
	case protoSCTP:
		return &flowpb.Layer4{Protocol: &flowpb.Layer4_SCTP{SCTP: &flowpb.SCTP{
			SourcePort: source, DestinationPort: destination,
		}}}
	case protoICMP:
		return &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv4{ICMPv4: &flowpb.ICMPv4{
			Type: uint32(r.IcmpType), Code: uint32(r.IcmpCode),
		}}}
	case protoICMPv6:
		return &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv6{ICMPv6: &flowpb.ICMPv6{
			Type: uint32(r.IcmpType), Code: uint32(r.IcmpCode),
		}}}
	}
	return nil
}

func tcpFlags(f uint8) *flowpb.TCPFlags {
	return &flowpb.TCPFlags{
		FIN: f&tcpFIN != 0, SYN: f&tcpSYN != 0, RST: f&tcpRST != 0, PSH: f&tcpPSH != 0,
		ACK: f&tcpACK != 0, URG: f&tcpURG != 0, ECE: f&tcpECE != 0, CWR: f&tcpCWR != 0,
	}
}

// summary is one line about the packet.
func summary(r *event.Raw) string {
	switch {
	case r.Family != 4 && r.Family != 6:
		return fmt.Sprintf("EtherType %#04x", bpf.Port(r.Ethertype))
	case r.Proto == protoTCP && bpf.DatapathEventType(r.Type) != bpf.DatapathEventTypeEVENT_SOCKET:
		var set []string
		for bit, name := range [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
			if r.TcpFlags&(1<<bit) != 0 {
				set = append(set, name)
			}
		}
		return "TCP Flags: " + strings.Join(set, ", ")
	case r.Proto == protoICMP:
		return "ICMPv4 " + icmpText(r, icmp4Names())
	case r.Proto == protoICMPv6:
		return "ICMPv6 " + icmpText(r, icmp6Names())
	}
	return event.Protocol(r.Proto)
}

func icmpText(r *event.Raw, names map[uint8]string) string {
	name := names[r.IcmpType]
	if name == "" {
		name = fmt.Sprintf("type %d", r.IcmpType)
	}
	if r.IcmpCode != 0 {
		return fmt.Sprintf("%s(code %d)", name, r.IcmpCode)
	}
	return name
}

func icmp4Names() map[uint8]string {
	return map[uint8]string{
		0: "EchoReply", 3: "DestinationUnreachable", 4: "SourceQuench", 5: "Redirect", 8: "EchoRequest",
		9: "RouterAdvertisement", 10: "RouterSolicitation", 11: "TimeExceeded", 12: "ParameterProblem",
		13: "TimestampRequest", 14: "TimestampReply",
	}
}

func icmp6Names() map[uint8]string {
	return map[uint8]string{
		1: "DestinationUnreachable", 2: "PacketTooBig", 3: "TimeExceeded", 4: "ParameterProblem",
		128: "EchoRequest", 129: "EchoReply", 130: "MLDv1MulticastListenerQueryMessage",
		131: "MLDv1MulticastListenerReportMessage", 133: "RouterSolicitation", 134: "RouterAdvertisement",
		135: "NeighborSolicitation", 136: "NeighborAdvertisement", 137: "Redirect",
		143: "MLDv2MulticastListenerReportMessageV2",
	}
}
