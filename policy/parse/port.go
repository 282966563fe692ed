package parse

import (
	"slices"
	"strings"

	"myelin/policy"
)

// lastPort is the largest number of a port.
const lastPort = 65535

// transports are the protocols that have ports.
func transports() []uint8 { return []uint8{policy.ProtoTCP, policy.ProtoUDP, policy.ProtoSCTP} }

// protocol reads the name of a protocol, one of names; 0 for ANY.
func (r *reader) protocol(field, name string, names ...string) uint8 {
	if !slices.Contains(names, name) {
		r.add(field, "%q is none of %s", name, strings.Join(names, ", "))
		return 0
	}
	return map[string]uint8{"TCP": policy.ProtoTCP, "UDP": policy.ProtoUDP, "SCTP": policy.ProtoSCTP}[name]
}

func (r *reader) port(field string, n int32) uint16 {
	if n < 1 || n > lastPort {
		r.add(field, "%d is not in 1..65535", n)
		return 0
	}
	return uint16(n)
}

// endPort reads the last port of a range.
func (r *reader) endPort(field string, n int32, first uint16) uint16 {
	last := r.port(field, n)
	if last != 0 && last < first {
		r.add(field, "%d is less than the first port, %d", last, first)
	}
	return last
}
