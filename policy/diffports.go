package policy

import (
	"maps"
	"slices"
	"strings"
)

// portTurn is a verdict that changes for some ports.
type portTurn struct {
	ports string
	Turn
}

// turns are the ports of which two lists of rows say something else.
func (d *differ) turns(before, after []row) (out []portTurn) {
	all := map[portPrefix]bool{}
	for _, r := range slices.Concat(before, after) {
		all[r.portPrefix] = true
	}
	order := slices.SortedFunc(maps.Keys(all), comparePrefixes)
	verdicts := func(p portPrefix) (a, b bool) {
		return within(before, p).ruling == allowed, within(after, p).ruling == allowed
	}
	for _, p := range order {
		was, will := verdicts(p)
		if was == will {
			continue
		}
		if up, ok := outer(p, all); ok {
			if a, b := verdicts(up); a == was && b == will {
				continue // it is said of more ports
			}
		}
		t := portTurn{ports: p.String(), Turn: Turn{will, d.before.ruleOrigin(within(before, p).rule), d.after.ruleOrigin(within(after, p).rule)}}
		var except []string
		for _, q := range order {
			if a, b := verdicts(q); q != p && p.contains(q) && (a != was || b != will) {
				except = append(except, q.String())
			}
		}
		if len(except) > 0 {
			t.ports += " except " + strings.Join(except, " ")
		}
		out = append(out, t)
	}
	return out
}

// within is the longest row that covers all of a prefix.
func within(rows []row, p portPrefix) (found row) {
	for _, r := range rows {
		if r.contains(p) && (found.proto == ProtoAny || r.bits >= found.bits) {
			found = r
		}
	}
	return found
}

// outer is the next larger prefix that is in a set.
func outer(p portPrefix, all map[portPrefix]bool) (portPrefix, bool) {
	for {
		var ok bool
		if p, ok = p.parent(); !ok {
			return p, false
		}
		if all[p] {
			return p, true
		}
	}
}

// contains reports whether all that q covers p covers too.
func (p portPrefix) contains(q portPrefix) bool {
	return p.proto == ProtoAny || p.proto == q.proto && p.bits <= q.bits && p.covers(q.proto, q.port)
}

// String is as Port's.
func (p portPrefix) String() string {
	return Port{Proto: p.proto, First: p.port, Last: p.port | uint16(1<<(16-p.bits)-1)}.String()
}
