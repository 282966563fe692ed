package policy

import "math/bits"

// portPrefix is the first bits of the ports of a protocol: what one row of the
// datapath covers. The one of ProtoAny covers everything.
type portPrefix struct {
	port  uint16 // bits after the first ones are 0
	proto uint8
	bits  uint8 // 0 to 16
}

// parent is the next larger prefix, and false for that of ProtoAny, which has none.
func (p portPrefix) parent() (portPrefix, bool) {
	switch {
	case p.proto == ProtoAny:
		return portPrefix{}, false
	case p.bits == 0:
		return portPrefix{}, true
	}
	p.bits--
	p.port &= ^uint16(0) << (16 - p.bits)
	return p, true
}

// covers reports whether a packet's protocol and port are the prefix's.
func (p portPrefix) covers(proto uint8, port uint16) bool {
	return p.proto == ProtoAny || p.proto == proto && port>>(16-p.bits) == p.port>>(16-p.bits)
}

// splitPorts calls yield with the fewest prefixes that cover first to last: 30 at most.
func splitPorts(proto uint8, first, last uint16, yield func(portPrefix)) {
	for from, to := uint32(first), uint32(last); from <= to; {
		free := min(bits.TrailingZeros32(from|1<<16), bits.Len32(to-from+1)-1)
		yield(portPrefix{uint16(from), proto, uint8(16 - free)})
		from += 1 << free
	}
}

// portName is a port by name: which number it is, the pod says that flows go to.
type portName struct {
	name  string
	proto uint8
}

// portsOf are the prefixes of a rule's ports, and those that have names.
func portsOf(ports []Port) (prefixes []portPrefix, names []portName) {
	if ports == nil {
		return []portPrefix{{}}, nil
	}
	for _, p := range ports {
		switch {
		case p.Name != "":
			names = append(names, portName{p.Name, p.Proto})
		case p.Proto == ProtoAny:
			prefixes = append(prefixes, portPrefix{})
		default:
			splitPorts(p.Proto, p.First, p.Last, func(pp portPrefix) { prefixes = append(prefixes, pp) })
		}
	}
	return prefixes, names
}
