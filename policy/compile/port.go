package compile

import (
	"math/bits"

	"myelin/policy"
)

// PortPrefix is the first bits of the ports of a protocol: what one row of the
// datapath covers. The one of ProtoAny covers everything.
type PortPrefix struct {
	Port  uint16 // bits after the first ones are 0
	Proto uint8
	Bits  uint8 // 0 to 16
}

// Parent is the next larger prefix, and false for that of ProtoAny, which has none.
func (p PortPrefix) Parent() (PortPrefix, bool) {
	switch {
	case p.Proto == policy.ProtoAny:
		return PortPrefix{}, false
	case p.Bits == 0:
		return PortPrefix{}, true
	}
	p.Bits--
	p.Port &= ^uint16(0) << (16 - p.Bits)
	return p, true
}

// Covers reports whether a packet's protocol and port are the prefix's.
func (p PortPrefix) Covers(proto uint8, port uint16) bool {
	return p.Proto == policy.ProtoAny || p.Proto == proto && port>>(16-p.Bits) == p.Port>>(16-p.Bits)
}

// splitPorts calls yield with the fewest prefixes that cover first to last: 30 at most.
func splitPorts(proto uint8, first, last uint16, yield func(PortPrefix)) {
	for from, to := uint32(first), uint32(last); from <= to; {
		free := min(bits.TrailingZeros32(from|1<<16), bits.Len32(to-from+1)-1)
		yield(PortPrefix{uint16(from), proto, uint8(16 - free)})
		from += 1 << free
	}
}

// portName is a port by name: which number it is, the pod says that flows go to.
type portName struct {
	name  string
	proto uint8
}

// portsOf are the prefixes of a rule's ports, and those that have names.
func portsOf(ports []policy.Port) (prefixes []PortPrefix, names []portName) {
	if ports == nil {
		return []PortPrefix{{}}, nil
	}
	for _, p := range ports {
		switch {
		case p.Name != "":
			names = append(names, portName{p.Name, p.Proto})
		case p.Proto == policy.ProtoAny:
			prefixes = append(prefixes, PortPrefix{})
		default:
			splitPorts(p.Proto, p.First, p.Last, func(pp PortPrefix) { prefixes = append(prefixes, pp) })
		}
	}
	return prefixes, names
}

// Contains reports whether all that q covers p covers too.
func (p PortPrefix) Contains(q PortPrefix) bool {
	return p.Proto == policy.ProtoAny || p.Proto == q.Proto && p.Bits <= q.Bits && p.Covers(q.Proto, q.Port)
}

// String is as Port's.
func (p PortPrefix) String() string {
	return policy.Port{Proto: p.Proto, First: p.Port, Last: p.Port | uint16(1<<(16-p.Bits)-1)}.String()
}
