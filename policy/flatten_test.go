package policy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"myelin/cluster"
)

// The prefixes of a range cover what is in it, nothing else, and nothing twice.
func TestSplitPorts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		first, last := pick(r, somePorts()), uint16(r.Uint32())
		if first > last {
			first, last = last, first
		}
		var list []portPrefix
		splitPorts(ProtoTCP, first, last, func(p portPrefix) { list = append(list, p) })
		if len(list) > 30 {
			t.Errorf("%d to %d takes %d prefixes", first, last, len(list))
		}
		for port := range 1 << 16 {
			n := 0
			for _, p := range list {
				n += boolIndex(p.covers(ProtoTCP, uint16(port)))
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
			spec := &Spec{Tier: Tier(r.IntN(3)), Priority: int32(r.IntN(3)), Ref: Ref{Key: cluster.Key{Name: fmt.Sprint(r.IntN(3))}}}
			x := &rule{id: uint32(i + 1), spec: spec, place: i, name: spec.Ref.Name, Rule: &Rule{Action: Action(r.IntN(2)), Ports: randomPorts(r)}}
			if spec.Tier == TierAdmin {
				x.Action = Action(r.IntN(3))
			}
			x.ports, _ = portsOf(x.Rule.Ports)
			rules = append(rules, x)
		}
		arrange(rules)
		list, _ := entries(rules, r.IntN(2) == 0, false)
		var all []*entry
		for i := range list {
			all = append(all, &list[i])
		}
		rows := flatten(all, func(e *entry) []portPrefix { return e.ports })
		for range 200 {
			proto, port := pick(r, protos()), uint16(r.Uint32())
			if r.IntN(2) == 0 {
				port = pick(r, somePorts())
			}
			if got, want := lookup(rows, proto, port), walk(list, proto, port); got.ruling != want.ruling || got.rule != want.id() {
				t.Fatalf("seed %d, %d/%d: got %s by %d, want %s by %d, of rows %v", seed, proto, port, got.ruling, got.rule, want.ruling, want.id(), rows)
			}
		}
		for i, row := range rows {
			if row.proto == ProtoAny {
				continue
			}
			without := lookup(append(append(rows[:0:0], rows[:i]...), rows[i+1:]...), row.proto, row.port)
			if without.ruling == row.ruling && without.rule == row.rule && without.bits < row.bits {
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
			if !p.covers(proto, port) {
				continue
			}
			if e.ruling != passed {
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
		arrange(rules)
		list, _ := entries(rules, c.isolated, false)
		var all []*entry
		for i := range list {
			all = append(all, &list[i])
		}
		got := lookup(flatten(all, func(e *entry) []portPrefix { return e.ports }), ProtoTCP, 80)
		text := got.ruling.String()
		if got.rule != 0 {
			text += fmt.Sprint(" ", got.rule)
		}
		if text != c.want {
			t.Errorf("%q, isolated %t: got %s, want %s", c.rules, c.isolated, text, c.want)
		}
	}
}

func parseRule(t *testing.T, i int, text string) *rule {
	f := strings.Fields(text)
	spec := &Spec{}
	var tier string
	for n, name := range []string{"admin", "default", "baseline"} {
		if strings.HasPrefix(f[0], name) {
			spec.Tier, tier = Tier(n), name
		}
	}
	fmt.Sscanf(f[0], tier+"%d", &spec.Priority)
	r := &rule{id: uint32(i + 1), spec: spec, place: i, Rule: &Rule{Action: map[string]Action{"deny": Deny, "allow": Allow, "pass": Pass}[f[1]]}}
	if f[2] != "any" {
		p := Port{Proto: ProtoTCP}
		if n, _ := fmt.Sscanf(f[2], "%d-%d", &p.First, &p.Last); n < 1 {
			t.Fatalf("%q: no port", text)
		}
		p.Last = max(p.First, p.Last)
		r.Rule.Ports = []Port{p}
	}
	r.ports, _ = portsOf(r.Rule.Ports)
	return r
}
