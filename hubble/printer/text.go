package printer

import (
	"cmp"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/eventtype"
	"myelin/hubble/query"
)

// Colors of ECMA-48.
const (
	red     = "31"
	green   = "32"
	yellow  = "33"
	magenta = "35"
	cyan    = "36"
)

func (p *Printer) paint(color, text string) string {
	if !p.Color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Ports are the ports of a flow; 0 without any.
func Ports(f *flowpb.Flow) (source, target uint32) {
	l4 := f.GetL4()
	switch {
	case l4.GetTCP() != nil:
		return l4.GetTCP().GetSourcePort(), l4.GetTCP().GetDestinationPort()
	case l4.GetUDP() != nil:
		return l4.GetUDP().GetSourcePort(), l4.GetUDP().GetDestinationPort()
	case l4.GetSCTP() != nil:
		return l4.GetSCTP().GetSourcePort(), l4.GetSCTP().GetDestinationPort()
	}
	return 0, 0
}

// ends are the source and the destination, with ports.
func (p *Printer) ends(f *flowpb.Flow) (source, target string) {
	if f.GetIP() == nil {
		return p.paint(cyan, Printable(f.GetEthernet().GetSource())),
			p.paint(cyan, Printable(f.GetEthernet().GetDestination()))
	}
	from, to := f.GetIP().GetSource(), f.GetIP().GetDestination()
	if p.Names {
		from = Name(f.GetSource(), f.GetSourceService(), f.GetSourceNames(), from)
		to = Name(f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames(), to)
	}
	sourcePort, targetPort := Ports(f)
	return p.end(from, sourcePort), p.end(to, targetPort)
}

func (p *Printer) end(host string, port uint32) string {
	host = Printable(host)
	if port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return p.paint(cyan, host)
}

// Name returns the name of an end of a flow: its pod, else its Service, else its DNS names, else the address.
func Name(e *flowpb.Endpoint, s *flowpb.Service, names []string, address string) string {
	switch {
	case e.GetPodName() != "":
		return path.Join(e.GetNamespace(), e.GetPodName())
	case s.GetName() != "":
		return path.Join(s.GetNamespace(), s.GetName())
	case len(names) > 0:
		return strings.Join(names, ",")
	}
	return address
}

func (p *Printer) identity(e *flowpb.Endpoint) string {
	number := e.GetIdentity()
	text := fmt.Sprintf("(ID:%d)", number)
	if names := query.ReservedIdentities(); int(number) < len(names) {
		text = "(" + names[number] + ")"
	}
	return p.paint(magenta, text)
}

// Type returns the event that a flow reports: a trace point, a drop reason, a policy verdict and so on.
func Type(f *flowpb.Flow) string {
	if l7 := f.GetL7(); l7 != nil {
		kind := strings.ToLower(l7.GetType().String())
		switch {
		case l7.GetHttp() != nil:
			return "http-" + kind
		case l7.GetDns() != nil:
			return strings.TrimSpace("dns-" + kind + " " + Printable(l7.GetDns().GetObservationSource()))
		}
		return "l7-" + kind
	}
	subtype := f.GetEventType().GetSubType()
	switch f.GetEventType().GetType() {
	case eventtype.Trace:
		return cmp.Or(eventtype.TracePoint(subtype), strconv.Itoa(int(subtype)))
	case eventtype.Drop:
		return Reason(f)
	case eventtype.PolicyVerdict:
		return fmt.Sprintf("policy-verdict:%s %s", match(f.GetPolicyMatchType()), f.GetTrafficDirection())
	case eventtype.Capture:
		return f.GetDebugCapturePoint().String()
	case eventtype.Sock:
		switch f.GetSockXlatePoint() {
		case flowpb.SocketTranslationPoint_SOCK_XLATE_POINT_PRE_DIRECTION_FWD:
			return "pre-xlate-fwd"
		case flowpb.SocketTranslationPoint_SOCK_XLATE_POINT_POST_DIRECTION_FWD:
			return "post-xlate-fwd"
		case flowpb.SocketTranslationPoint_SOCK_XLATE_POINT_PRE_DIRECTION_REV:
			return "pre-xlate-rev"
		case flowpb.SocketTranslationPoint_SOCK_XLATE_POINT_POST_DIRECTION_REV:
			return "post-xlate-rev"
		}
	}
	return "UNKNOWN"
}

// match returns the part of a flow that a policy's rule matched.
func match(kind uint32) string {
	names := []string{"none", "L3-Only", "L3-L4", "L4-Only", "all", "L3-Proto", "Proto-Only"}
	if int(kind) < len(names) {
		return names[kind]
	}
	return "unknown"
}

// Policies returns the policies that decided about a flow: namespace, name and kind of each.
func Policies(f *flowpb.Flow) (names []string) {
	all := [][]*flowpb.Policy{f.GetEgressDeniedBy(), f.GetIngressDeniedBy()}
	if v := f.GetVerdict(); v == flowpb.Verdict_FORWARDED || v == flowpb.Verdict_REDIRECTED {
		all = [][]*flowpb.Policy{f.GetEgressAllowedBy(), f.GetIngressAllowedBy()}
	}
	for _, list := range all {
		for _, p := range list {
			if p.GetName() != "" {
				names = append(names, Printable(fmt.Sprintf("%s (%s)", path.Join(p.GetNamespace(), p.GetName()),
					p.GetKind())))
			}
		}
	}
	return names
}

func (p *Printer) verdict(f *flowpb.Flow) string {
	text, color := f.GetVerdict().String(), ""
	decided := f.GetEventType().GetType() == eventtype.PolicyVerdict
	said := func(word string) {
		if decided {
			text = word
			if names := Policies(f); p.Policies && len(names) > 0 {
				text += " BY " + strings.Join(names, ", ")
			}
		}
	}
	switch f.GetVerdict() {
	case flowpb.Verdict_FORWARDED, flowpb.Verdict_REDIRECTED:
		color = green
		said("ALLOWED")
	case flowpb.Verdict_DROPPED, flowpb.Verdict_ERROR:
		color = red
		said("DENIED")
	case flowpb.Verdict_AUDIT:
		color = yellow
		said("AUDITED")
	case flowpb.Verdict_TRACED, flowpb.Verdict_TRANSLATED:
		color = yellow
	}
	return p.paint(color, text)
}

// Summary describes the flow's packet: its protocol, with TCP flags or the ICMP type, or its request.
func Summary(f *flowpb.Flow) string {
	if text := f.GetSummary(); text != "" { // deprecated, and still what servers set
		return Printable(text)
	}
	if l7 := f.GetL7(); l7 != nil {
		switch {
		case l7.GetHttp() != nil:
			h := l7.GetHttp()
			return Printable(strings.TrimSpace(fmt.Sprintf("%s %s %s %d", h.GetProtocol(), h.GetMethod(), h.GetUrl(),
				h.GetCode())))
		case l7.GetDns() != nil:
			d := l7.GetDns()
			return Printable(strings.TrimSpace(fmt.Sprintf("DNS %s %s %s", strings.Join(d.GetQtypes(), ","),
				d.GetQuery(), strings.Join(d.GetIps(), ","))))
		}
	}
	l4 := f.GetL4()
	switch {
	case l4.GetTCP() != nil:
		return strings.TrimSuffix("TCP Flags: "+flags(l4.GetTCP().GetFlags()), " Flags: ")
	case l4.GetICMPv4() != nil:
		return fmt.Sprintf("ICMPv4 type %d code %d", l4.GetICMPv4().GetType(), l4.GetICMPv4().GetCode())
	case l4.GetICMPv6() != nil:
		return fmt.Sprintf("ICMPv6 type %d code %d", l4.GetICMPv6().GetType(), l4.GetICMPv6().GetCode())
	}
	return Protocol(f)
}

// Protocol is the name of a flow's transport protocol, or of its IP version if it has none that is known.
func Protocol(f *flowpb.Flow) string {
	l4 := f.GetL4()
	switch {
	case l4.GetTCP() != nil:
		return "TCP"
	case l4.GetUDP() != nil:
		return "UDP"
	case l4.GetSCTP() != nil:
		return "SCTP"
	case l4.GetICMPv4() != nil:
		return "ICMPv4"
	case l4.GetICMPv6() != nil:
		return "ICMPv6"
	case f.GetIP() != nil:
		return f.GetIP().GetIpVersion().String()
	}
	return "Ethernet"
}

func flags(f *flowpb.TCPFlags) string {
	var names []string
	for _, one := range []struct {
		name string
		set  bool
	}{{"SYN", f.GetSYN()}, {"ACK", f.GetACK()}, {"RST", f.GetRST()}, {"FIN", f.GetFIN()}, {"PSH", f.GetPSH()},
		{"URG", f.GetURG()}, {"ECE", f.GetECE()}, {"CWR", f.GetCWR()}, {"NS", f.GetNS()}} {
		if one.set {
			names = append(names, one.name)
		}
	}
	return strings.Join(names, ", ")
}
