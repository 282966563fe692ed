package parse

import (
	"cmp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// maxPorts is how many ports, or types of ICMP, an item of Cilium's lists may
// have.
const maxPorts = 40

// ciliumPorts is nil where the rule asks for none. Ports that are not understood,
// or where a proxy would have to look further, are left out, and noted in gap.
func (r *reader) ciliumPorts(c *ciliumRule, gap *gaps) []policy.Port {
	if len(c.ports) > 0 && len(c.icmps) > 0 {
		r.add(c.path, "toPorts and icmps can't stand in one rule")
		gap.rule = true
	}
	var out []policy.Port
	for i := range c.ports {
		p, at := &c.ports[i], item(c.path, "toPorts", i)
		if len(p.Ports) > maxPorts {
			r.add(at+".ports", "has %d items: at most %d", len(p.Ports), maxPorts)
		}
		transport := r.sound(at, func() { r.aboveTransport(at, p) })
		for j := range p.Ports {
			var ports []policy.Port
			at := item(at, "ports", j)
			if r.sound(at, func() { ports = r.ciliumPort(at, &p.Ports[j]) }) && transport {
				out = append(out, ports...)
			} else {
				gap.ports = true
			}
		}
		gap.ports = gap.ports || !transport
	}
	for i := range c.icmps {
		at := item(c.path, "icmps", i)
		if n := len(c.icmps[i].Fields); n > maxPorts {
			r.add(at+".fields", "has %d items: at most %d", n, maxPorts)
		}
		lost := r.lostIn(at)
		gap.ports = gap.ports || lost
		for j := range c.icmps[i].Fields {
			var port policy.Port
			at := item(at, "fields", j)
			if r.sound(at, func() { port = r.icmp(at, &c.icmps[i].Fields[j]) }) && !lost {
				out = append(out, port)
			} else {
				gap.ports = true
			}
		}
	}
	return out
}

// aboveTransport notes what a proxy would have to see to.
func (r *reader) aboveTransport(at string, p *ciliumv2.PortRule) {
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"terminatingTLS", p.TerminatingTLS != nil},
		{"originatingTLS", p.OriginatingTLS != nil},
		{"serverNames", len(p.ServerNames) > 0},
		{"listener", p.Listener != nil},
		{"rules.http", p.Rules != nil && len(p.Rules.HTTP) > 0},
		{"rules.kafka", p.Rules != nil && len(p.Rules.Kafka) > 0},
		{"rules.dns", p.Rules != nil && len(p.Rules.DNS) > 0},
		{"rules.l7proto", p.Rules != nil && p.Rules.L7Proto != ""},
		{"rules.l7", p.Rules != nil && len(p.Rules.L7) > 0},
	} {
		if field.set {
			r.notSupported(at + "." + field.name)
		}
	}
}

// ciliumPort is a port of one protocol, or of all that have ports. Port 0 is all
// ports.
func (r *reader) ciliumPort(at string, p *ciliumv2.PortProtocol) []policy.Port {
	protocols := transports()
	if name := cmp.Or(p.Protocol, "ANY"); name != "ANY" {
		protocols = []uint8{r.protocol(at+".protocol", name, "TCP", "UDP", "SCTP", "ANY")}
	}
	var port policy.Port
	n, err := strconv.ParseUint(p.Port, 10, 16)
	name := strings.ToLower(p.Port)
	switch {
	case p.Port == "":
		r.add(at+".port", "must be set")
	case isName(name):
		port.Name = name
	case err != nil || p.Port != strconv.FormatUint(n, 10):
		r.add(at+".port", "%q is neither a number of 0..65535 nor the name of a port", p.Port)
		return nil
	case n == 0:
		port.Last = lastPort
	default:
		port.First, port.Last = uint16(n), uint16(n)
	}
	switch {
	case p.EndPort == 0:
	case port.First == 0:
		r.add(at+".endPort", "must not be set where port is no number, or 0")
	default:
		port.Last = r.endPort(at+".endPort", p.EndPort, port.First)
	}
	out := make([]policy.Port, 0, len(protocols))
	for _, proto := range protocols {
		port.Proto = proto
		out = append(out, port)
	}
	return out
}

// isName reports whether a port is a name (RFC 6335, 5.1).
func isName(port string) bool { return len(validation.IsValidPortName(port)) == 0 }

// icmp is a type of ICMP, or of ICMPv6.
func (r *reader) icmp(at string, f *ciliumv2.ICMPField) policy.Port {
	out := policy.Port{Proto: policy.ProtoICMP}
	names := icmpTypes()
	switch f.Family {
	case "", "IPv4":
	case "IPv6":
		out.Proto, names = policy.ProtoICMPv6, icmp6Types()
	default:
		r.add(at+".family", "%q is none of IPv4, IPv6", f.Family)
		return out
	}
	if f.Type == nil {
		r.add(at+".type", "must be set")
		return out
	}
	text := f.Type.String()
	number, ok := names[text]
	if n, err := strconv.ParseUint(text, 10, 8); err == nil {
		number, ok = uint16(n), true
	}
	if !ok {
		r.add(at+".type", "%q is neither a number of 0..255 nor a name that %s has", text, cmp.Or(f.Family, "IPv4"))
	}
	out.First, out.Last = number, number
	return out
}

// icmpTypes are the names that Cilium has for types of ICMP (RFC 792 and later).
func icmpTypes() map[string]uint16 {
	return map[string]uint16{
		"EchoReply": 0, "DestinationUnreachable": 3, "Redirect": 5, "Echo": 8, "EchoRequest": 8,
		"RouterAdvertisement": 9,
		"RouterSelection":     10,
		"TimeExceeded":        11, "ParameterProblem": 12, "Timestamp": 13, "TimestampReply": 14, "Photuris": 40,
		"ExtendedEchoRequest": 42, "ExtendedEchoReply": 43,
	}
}

// icmp6Types are the names that Cilium has for types of ICMPv6 (RFC 4443 and
// later).
func icmp6Types() map[string]uint16 {
	return map[string]uint16{
		"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "ParameterProblem": 4, "EchoRequest": 128,
		"EchoReply":              129,
		"MulticastListenerQuery": 130, "MulticastListenerReport": 131, "MulticastListenerDone": 132,
		"RouterSolicitation": 133, "RouterAdvertisement": 134,
		"NeighborSolicitation": 135, "NeighborAdvertisement": 136, "RedirectMessage": 137, "RouterRenumbering": 138,
		"ICMPNodeInformationQuery":    139,
		"ICMPNodeInformationResponse": 140, "InverseNeighborDiscoverySolicitation": 141,
		"InverseNeighborDiscoveryAdvertisement": 142,
		"HomeAgentAddressDiscoveryRequest":      144, "HomeAgentAddressDiscoveryReply": 145,
		"MobilePrefixSolicitation":          146,
		"MobilePrefixAdvertisement":         147,
		"DuplicateAddressRequestCodeSuffix": 157, "DuplicateAddressConfirmationCodeSuffix": 158,
		"ExtendedEchoRequest": 160, "ExtendedEchoReply": 161,
	}
}
