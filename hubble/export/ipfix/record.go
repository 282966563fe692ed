package ipfix

import (
	"encoding/binary"
	"net/netip"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/consumer"
)

// record is a data record of a flow.
type record struct {
	milliseconds                 uint64 // of the event, since 1970
	source, destination, postNAT netip.Addr
	sourcePort, destinationPort  uint16
	protocol                     uint8
	direction                    uint8 // 0 ingress, 1 egress
	flags, icmp                  uint16
	status, event                uint8
	packets, bytes               uint64
	counted                      bool // packets and bytes are known
}

// unknownDirection is no direction of the registry's: such a record is of a flow whose direction is not known.
const unknownDirection = 0xff

// newRecord is false for a flow that is no packet with addresses: one of L7 or of a socket, of which the packets have
// flows of their own.
func newRecord(f *flowpb.Flow) (r record, ok bool) {
	if f.GetType() == flowpb.FlowType_L7 || f.GetType() == flowpb.FlowType_SOCK {
		return r, false
	}
	source, err1 := netip.ParseAddr(f.GetIP().GetSource())
	destination, err2 := netip.ParseAddr(f.GetIP().GetDestination())
	if err1 != nil || err2 != nil || source.Is4() != destination.Is4() {
		return r, false
	}
	r = record{source: source, destination: destination, postNAT: source, direction: unknownDirection,
		milliseconds: uint64(f.GetTime().AsTime().UnixMilli()), status: forwardingStatus(f), event: firewallEvent(f)}
	if to, err := netip.ParseAddr(f.GetIP().GetSourceXlated()); err == nil && to.Is4() == source.Is4() {
		r.postNAT = to
	}
	switch f.GetTrafficDirection() {
	case flowpb.TrafficDirection_INGRESS:
		r.direction = 0
	case flowpb.TrafficDirection_EGRESS:
		r.direction = 1
	}
	from, to, _ := consumer.Ports(f)
	r.sourcePort, r.destinationPort = uint16(from), uint16(to)
	r.layer4(f.GetL4())
	r.packets, r.bytes, r.counted = consumer.Counts(consumer.Extension(f))
	return r, true
}

// layer4 sets the protocol's number (IANA, protocol numbers) and what is of it alone.
func (r *record) layer4(l4 *flowpb.Layer4) {
	switch p := l4.GetProtocol().(type) {
	case *flowpb.Layer4_TCP:
		r.protocol, r.flags = 6, controlBits(p.TCP.GetFlags())
	case *flowpb.Layer4_UDP:
		r.protocol = 17
	case *flowpb.Layer4_ICMPv4:
		r.protocol, r.icmp = 1, uint16(p.ICMPv4.GetType()<<8|p.ICMPv4.GetCode()&0xff)
	case *flowpb.Layer4_ICMPv6:
		r.protocol, r.icmp = 58, uint16(p.ICMPv6.GetType()<<8|p.ICMPv6.GetCode()&0xff)
	case *flowpb.Layer4_SCTP:
		r.protocol = 132
	case *flowpb.Layer4_VRRP:
		r.protocol = 112
	case *flowpb.Layer4_IGMP:
		r.protocol = 2
	}
}

// controlBits are bits 4 to 15 of the 13th and 14th byte of a TCP header (RFC 7125).
func controlBits(f *flowpb.TCPFlags) (bits uint16) {
	for i, set := range []bool{f.GetFIN(), f.GetSYN(), f.GetRST(), f.GetPSH(), f.GetACK(), f.GetURG(), f.GetECE(),
		f.GetCWR(), f.GetNS()} {
		if set {
			bits |= 1 << i
		}
	}
	return bits
}

// forwardingStatus is a value of IANA's registry for element 89 (RFC 7270 section 4.12).
func forwardingStatus(f *flowpb.Flow) uint8 {
	const forwarded, dropped, denied, unroutable, ttl, policer, consumed = 64, 128, 129, 131, 137,
		138, 192
	switch f.GetVerdict() {
	case flowpb.Verdict_FORWARDED, flowpb.Verdict_AUDIT, flowpb.Verdict_TRACED, flowpb.Verdict_TRANSLATED:
		return forwarded
	case flowpb.Verdict_REDIRECTED:
		return consumed
	case flowpb.Verdict_DROPPED, flowpb.Verdict_ERROR:
	default:
		return 0
	}
	switch f.GetDropReasonDesc() {
	case flowpb.DropReason_POLICY_DENIED, flowpb.DropReason_POLICY_DENY:
		return denied
	case flowpb.DropReason_STALE_OR_UNROUTABLE_IP, flowpb.DropReason_FIB_LOOKUP_FAILED:
		return unroutable
	case flowpb.DropReason_TTL_EXCEEDED:
		return ttl
	case flowpb.DropReason_DROP_RATE_LIMITED:
		return policer
	}
	return dropped
}

// firewallEvent is a value of IANA's registry for element 233.
func firewallEvent(f *flowpb.Flow) uint8 {
	const ignore, created, deleted, denied, alert, update = 0, 1, 2, 3, 4, 5
	flags := f.GetL4().GetTCP().GetFlags()
	switch {
	case f.GetVerdict() == flowpb.Verdict_AUDIT:
		return alert
	case f.GetDropReasonDesc() == flowpb.DropReason_POLICY_DENIED,
		f.GetDropReasonDesc() == flowpb.DropReason_POLICY_DENY:
		return denied
	case f.GetVerdict() != flowpb.Verdict_FORWARDED:
		return ignore
	case flags.GetFIN() || flags.GetRST():
		return deleted
	case f.GetTraceReason() == flowpb.TraceReason_NEW:
		return created
	}
	return update
}

// field is an information element of IANA's registry, and its value.
type field struct {
	id, length uint16
	put        func([]byte, *record) []byte
}

// template is one of data records. All have the fields of both families in the same order.
type template struct {
	id     uint16
	fields []field
}

// Templates of records by whether addresses are IPv6, and whether packets and bytes are known.
const (
	template4        = 256
	template6        = 257
	template4Counted = 258
	template6Counted = 259
	templateLoss     = 260 // options: what the exporter has lost
)

func (r *record) template() uint16 {
	switch {
	case r.source.Is4() && !r.counted:
		return template4
	case r.source.Is4():
		return template4Counted
	case !r.counted:
		return template6
	}
	return template6Counted
}

func templates() []template {
	four, six := fields(false), fields(true)
	counts := []field{
		{2, 8, func(b []byte, r *record) []byte { return binary.BigEndian.AppendUint64(b, r.packets) }},
		{1, 8, func(b []byte, r *record) []byte { return binary.BigEndian.AppendUint64(b, r.bytes) }},
	}
	return []template{{template4, four}, {template6, six},
		{template4Counted, append(fields(false), counts...)}, {template6Counted, append(fields(true), counts...)}}
}

func fields(six bool) []field {
	be := binary.BigEndian
	source, destination, postNAT, icmp, size := uint16(8), uint16(12), uint16(225), uint16(32), uint16(4)
	if six {
		source, destination, postNAT, icmp, size = 27, 28, 281, 139, 16
	}
	return []field{
		{152, 8, func(b []byte, r *record) []byte { return be.AppendUint64(b, r.milliseconds) }}, // start
		{153, 8, func(b []byte, r *record) []byte { return be.AppendUint64(b, r.milliseconds) }}, // end
		{source, size, func(b []byte, r *record) []byte { return append(b, r.source.AsSlice()...) }},
		{destination, size, func(b []byte, r *record) []byte { return append(b, r.destination.AsSlice()...) }},
		{postNAT, size, func(b []byte, r *record) []byte { return append(b, r.postNAT.AsSlice()...) }},
		{7, 2, func(b []byte, r *record) []byte { return be.AppendUint16(b, r.sourcePort) }},
		{11, 2, func(b []byte, r *record) []byte { return be.AppendUint16(b, r.destinationPort) }},
		{4, 1, func(b []byte, r *record) []byte { return append(b, r.protocol) }},
		{61, 1, func(b []byte, r *record) []byte { return append(b, r.direction) }},
		{6, 2, func(b []byte, r *record) []byte { return be.AppendUint16(b, r.flags) }},
		{icmp, 2, func(b []byte, r *record) []byte { return be.AppendUint16(b, r.icmp) }},
		{89, 1, func(b []byte, r *record) []byte { return append(b, r.status) }},
		{233, 1, func(b []byte, r *record) []byte { return append(b, r.event) }},
	}
}
