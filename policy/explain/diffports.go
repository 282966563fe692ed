package explain

import (
	"maps"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/compile"
)

// portChange is a verdict that changes for some ports.
type portChange struct {
	ports string
	VerdictChange
}

// changes are the ports of which two lists of rows say something else.
func (d *differ) changes(before, after []compile.PortVerdict) (out []portChange) {
	all := map[compile.PortPrefix]bool{}
	for _, r := range slices.Concat(before, after) {
		all[r.PortPrefix] = true
	}
	order := slices.SortedFunc(maps.Keys(all), compile.ComparePrefixes)
	verdicts := func(p compile.PortPrefix) (a, b bool) {
		return within(before, p).Verdict == compile.Allowed, within(after, p).Verdict == compile.Allowed
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
		t := portChange{ports: p.String(), VerdictChange: VerdictChange{will,
			d.before.RuleOrigin(within(before, p).Rule),
			d.after.RuleOrigin(within(after, p).Rule)}}
		var except []string
		for _, q := range order {
			if a, b := verdicts(q); q != p && p.Contains(q) && (a != was || b != will) {
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
func within(rows []compile.PortVerdict, p compile.PortPrefix) (found compile.PortVerdict) {
	for _, r := range rows {
		if r.Contains(p) && (found.Proto == policy.ProtoAny || r.Bits >= found.Bits) {
			found = r
		}
	}
	return found
}

// outer is the next larger prefix that is in a set.
func outer(p compile.PortPrefix, all map[compile.PortPrefix]bool) (compile.PortPrefix, bool) {
	for {
		var ok bool
		if p, ok = p.Parent(); !ok {
			return p, false
		}
		if all[p] {
			return p, true
		}
	}
}
