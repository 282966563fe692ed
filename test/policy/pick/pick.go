// Package pick makes random choices for tests of policies.
package pick

import (
	"math/rand/v2"

	"myelin/policy"
)

// PolicyPorts makes up the ports of a rule.
func PolicyPorts(r *rand.Rand) (out []policy.Port) {
	for range r.IntN(4) {
		switch p := (policy.Port{Proto: Of(r, Protocols())}); r.IntN(6) {
		case 0:
			out = append(out, policy.Port{})
		case 1:
			p.Last = 65535
			out = append(out, p)
		case 2:
			p.Name = Of(r, []string{"http", "dns"})
			if r.IntN(4) == 0 {
				p.Proto = policy.ProtoAny
			}
			out = append(out, p)
		default:
			p.First, p.Last = Of(r, Ports()), Of(r, Ports())
			if p.First > p.Last {
				p.First, p.Last = p.Last, p.First
			}
			out = append(out, p)
		}
	}
	return out
}

// Protocols are those that tests use, TCP twice as often.
func Protocols() []uint8 {
	return []uint8{policy.ProtoTCP, policy.ProtoTCP, policy.ProtoUDP, policy.ProtoICMP}
}

// Ports are well-known ones and those at the ends of ranges.
func Ports() []uint16 { return []uint16{0, 1, 79, 80, 81, 443, 8080, 8443, 65535} }

// Of picks an element of a list.
func Of[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
