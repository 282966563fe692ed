package compile

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/policy"
	"myelin/test/policy/pick"
)

// The prefixes of a range cover what is in it, nothing else, and nothing twice.
func TestSplitPorts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		first, last := pick.Of(r, pick.Ports()), uint16(r.Uint32())
		if first > last {
			first, last = last, first
		}
		var list []PortPrefix
		splitPorts(policy.ProtoTCP, first, last, func(p PortPrefix) { list = append(list, p) })
		if len(list) > 30 {
			t.Errorf("%d to %d takes %d prefixes", first, last, len(list))
		}
		for port := range 1 << 16 {
			n := 0
			for _, p := range list {
				n += boolIndex(p.Covers(policy.ProtoTCP, uint16(port)))
			}
			if want := boolIndex(int(first) <= port && port <= int(last)); n != want {
				t.Fatalf("%d to %d: port %d is covered %d times, want %d", first, last, port, n, want)
			}
		}
	}
}

// What rows say of a packet is what the first rule says that matches it, and
// no row is there that its parent makes needless.
func TestFlatten(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var rules []*rule
		for i := range r.IntN(7) {
			spec := &policy.Spec{Tier: policy.Tier(r.IntN(3)), Priority: int32(r.IntN(3)),
				Ref: policy.Ref{Key: cluster.Key{Name: fmt.Sprint(r.IntN(3))}}}
			x := &rule{id: uint32(i + 1), spec: spec, place: i, name: spec.Ref.Name,
				Rule: &policy.Rule{Action: policy.Action(r.IntN(2)), Ports: pick.PolicyPorts(r)}}
			if spec.Tier == policy.TierAdmin {
				x.Action = policy.Action(r.IntN(3))
			}
			x.ports, _ = portsOf(x.Rule.Ports)
			rules = append(rules, x)
		}
		sortRules(rules)
		list, _ := entries(rules, r.IntN(2) == 0, false)
		var all []*entry
		for i := range list {
			all = append(all, &list[i])
		}
		rows := flatten(all, func(e *entry) []PortPrefix { return e.ports }, nil)
		for range 200 {
			proto, port := pick.Of(r, pick.Protocols()), uint16(r.Uint32())
			if r.IntN(2) == 0 {
				port = pick.Of(r, pick.Ports())
			}
			if got, want := Lookup(rows, proto, port), walk(list, proto, port); got.Verdict != want.verdict ||
				got.Rule != want.id() {
				t.Fatalf("seed %d, %d/%d: got %s by %d, want %s by %d, of rows %v", seed, proto, port, got.Verdict,
					got.Rule,
					want.verdict, want.id(), rows)
			}
		}
		for i, row := range rows {
			if row.Proto == policy.ProtoAny {
				continue
			}
			without := Lookup(append(append(rows[:0:0], rows[:i]...), rows[i+1:]...), row.Proto, row.Port)
			if without.Verdict == row.Verdict && without.Rule == row.Rule && without.Bits < row.Bits {
				t.Fatalf("seed %d: row %v of %v is needless", seed, row, rows)
			}
		}
	}
}

// walk asks one rule after another.
func walk(list []entry, proto uint8, port uint16) *entry {
	skip := false
	for i := range list {
		e := &list[i]
		if skip && e.admin {
			continue
		}
		for _, p := range e.ports {
			if !p.Covers(proto, port) {
				continue
			}
			if e.verdict != Passed {
				return e
			}
			skip = true
			break
		}
	}
	return nil
}

// Each line is rules, "tier[priority] action port", of one peer and endpoint,
// and what TCP port 80 gets.
func TestPrecedence(t *testing.T) {
	for _, c := range []struct {
		rules, want string
		isolated    bool
	}{
		{"", "allow", false},
		{"", "no rule", true},
		{"default allow 80", "allow 1", true},
		{"default allow 81", "no rule", true},
		{"default allow any, default deny 80", "deny 2", true},
		{"default deny any, default allow 80", "deny 1", true},
		{"default deny 81, default allow any", "allow 2", true},
		{"default deny 80", "deny 1", false},
		{"admin1 allow any, default deny 80", "allow 1", true},
		{"admin2 deny 80, admin1 allow any", "allow 2", true},
		{"admin1 deny 80, admin2 allow any", "deny 1", true},
		{"admin1 deny 81, admin2 allow any", "allow 2", true},
		{"admin1 pass any, admin2 deny 80", "allow", false},
		{"admin1 pass any, admin2 allow 80", "no rule", true},
		{"admin1 pass 80, admin2 deny any, default allow 80", "allow 3", true},
		{"admin1 pass 81, admin2 deny any, default allow 80", "deny 2", true},
		{"admin1 pass any, admin2 deny any, baseline1 deny 80", "deny 3", false},
		{"baseline1 deny any", "deny 1", false},
		{"baseline1 deny any", "no rule", true},
		{"baseline1 deny any, default allow 80", "allow 2", true},
		{"baseline2 deny 80, baseline1 allow any", "allow 2", false},
		{"baseline1 deny 80-90, baseline2 allow any", "deny 1", false},
		{"baseline1 deny 81-90, baseline2 allow any", "allow 2", false},
	} {
		var rules []*rule
		for i, text := range strings.Split(c.rules, ", ") {
			if text != "" {
				rules = append(rules, parseRule(t, i, text))
			}
		}
		sortRules(rules)
		list, _ := entries(rules, c.isolated, false)
		var all []*entry
		for i := range list {
			all = append(all, &list[i])
		}
		got := Lookup(flatten(all, func(e *entry) []PortPrefix { return e.ports }, nil), policy.ProtoTCP, 80)
		text := got.Verdict.String()
		if got.Rule != 0 {
			text += fmt.Sprint(" ", got.Rule)
		}
		if text != c.want {
			t.Errorf("%q, isolated %t: got %s, want %s", c.rules, c.isolated, text, c.want)
		}
	}
}

func parseRule(t *testing.T, i int, text string) *rule {
	f := strings.Fields(text)
	spec := &policy.Spec{}
	var tier string
	for n, name := range []string{"admin", "default", "baseline"} {
		if strings.HasPrefix(f[0], name) {
			spec.Tier, tier = policy.Tier(n), name
		}
	}
	fmt.Sscanf(f[0], tier+"%d", &spec.Priority)
	r := &rule{id: uint32(i + 1), spec: spec, place: i,
		Rule: &policy.Rule{Action: map[string]policy.Action{"deny": policy.Deny, "allow": policy.Allow,
			"pass": policy.Pass}[f[1]]}}
	if f[2] != "any" {
		p := policy.Port{Proto: policy.ProtoTCP}
		if n, _ := fmt.Sscanf(f[2], "%d-%d", &p.First, &p.Last); n < 1 {
			t.Fatalf("%q: no port", text)
		}
		p.Last = max(p.First, p.Last)
		r.Rule.Ports = []policy.Port{p}
	}
	r.ports, _ = portsOf(r.Rule.Ports)
	return r
}
