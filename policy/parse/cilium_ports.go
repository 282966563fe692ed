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

// portItem is an item of toPorts with what the proxy enforces.
type portItem struct {
	path  string
	ports []policy.Port
	l7    *policy.L7
}

// ciliumPorts is nil where the rule asks for none, or only for ports that the proxy sees to: those are items. Ports
// that are not understood are left out, and noted in gap.
func (r *reader) ciliumPorts(c *ciliumRule, gap *gaps) (out []policy.Port, items []portItem) {
	if len(c.ports) > 0 && len(c.icmps) > 0 {
		r.add(c.path, "toPorts and icmps can't stand in one rule")
		gap.rule = true
	}
	for i := range c.ports {
		ports, l7 := r.ciliumPortRule(c, item(c.path, "toPorts", i), &c.ports[i], gap)
		switch {
		case l7 == nil:
			out = append(out, ports...)
		case len(ports) > 0:
			items = append(items, portItem{item(c.path, "toPorts", i), ports, l7})
		}
	}
	for i := range c.icmps {
		out = append(out, r.ciliumICMP(item(c.path, "icmps", i), &c.icmps[i], gap)...)
	}
	return out, items
}

// ciliumPortRule is an item of toPorts. Without all that stands above its ports, it has none.
func (r *reader) ciliumPortRule(c *ciliumRule, at string, p *ciliumv2.PortRule, gap *gaps) (out []policy.Port,
	l7 *policy.L7) {
	if len(p.Ports) > maxPorts {
		r.add(at+".ports", "has %d items: at most %d", len(p.Ports), maxPorts)
	}
	whole := r.sound(at, func() { l7 = r.ciliumL7(c, at, p) })
	for j := range p.Ports {
		var ports []policy.Port
		at := item(at, "ports", j)
		if r.sound(at, func() { ports = r.ciliumPort(at, &p.Ports[j]) }) && whole {
			out = append(out, ports...)
		} else {
			gap.ports = true
		}
	}
	if gap.ports = gap.ports || !whole; !whole {
		return nil, nil
	}
	if l7 != nil {
		some := len(out) > 0
		if out = proxied(out, l7); some && len(out) == 0 {
			r.unenforced(at+".ports", "none is of a protocol that the proxy reads")
			gap.ports = true
		}
	}
	return out, l7
}

func (r *reader) ciliumICMP(at string, icmp *ciliumv2.ICMPRule, gap *gaps) (out []policy.Port) {
	if n := len(icmp.Fields); n > maxPorts {
		r.add(at+".fields", "has %d items: at most %d", n, maxPorts)
	}
	lost := r.lostIn(at)
	gap.ports = gap.ports || lost
	for j := range icmp.Fields {
		var port policy.Port
		at := item(at, "fields", j)
		if r.sound(at, func() { port = r.icmp(at, &icmp.Fields[j]) }) && !lost {
			out = append(out, port)
		} else {
			gap.ports = true
		}
	}
	return out
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
