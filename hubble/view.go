package hubble

import (
	"net/netip"

	"myelin/bpf"
	"myelin/event"
)

// IANA numbers of protocols.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// TCP flags, RFC 9293 section 3.1.
const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
	tcpURG
	tcpECE
	tcpCWR
)

// view is a packet's addresses as a flow shows them: the two ends that communicate. So the packets of both directions
// have the same two ends, whatever is translated on the way.
type view struct {
	src, dst netip.AddrPort
	// srcXlated is the source after translation, service the destination before it; the zero AddrPort if unchanged.
	srcXlated, service netip.AddrPort
}

func viewOf(r *event.Raw) view {
	v := view{src: addrPort(r.Src, r.Sport), dst: addrPort(r.Dst, r.Dport)}
	if x := addrPort(r.XlatedSrc, r.XlatedSport); x.Addr().IsValid() && x != v.src {
		v.srcXlated = x
	}
	if x := addrPort(r.XlatedDst, r.XlatedDport); x.Addr().IsValid() && x != v.dst {
		v.dst, v.service = x, v.dst
	}
	return v
}

func addrPort(a bpf.DatapathAddr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Netip(), bpf.Port(port))
}

// fromSource reports whether a hook sees packets on the side of their source: then the endpoint of this node is the
// source. known is false where there is no hook.
func fromSource(r *event.Raw) (source, known bool) {
	if bpf.DatapathEventType(r.Type) == bpf.DatapathEventTypeEVENT_SOCKET {
		return true, true
	}
	switch bpf.DatapathHook(r.Hook) {
	case bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathHookHOOK_TO_WIRE:
		return true, true
	case bpf.DatapathHookHOOK_TO_POD, bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathHookHOOK_FROM_WIRE_XDP:
		return false, true
	}
	return false, false
}
