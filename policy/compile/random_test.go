package compile_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/explain"
	"myelin/test/policy/scene"
)

// All that a compiler says is what a walk over all rules says, after each of
// many changes, and what a new compiler says that is told all at once.
func TestRandom(t *testing.T) {
	worlds := 60
	if testing.Short() {
		worlds = 30
	}
	for seed := range uint64(worlds) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := scene.RandomScene(t, r)
		c := w.Compiler()
		c.SetSlice(int(seed % 4)) // most lists load in several rounds
		for step := range 25 {
			w.Randomize(c, r, step)
			if r.IntN(3) == 0 {
				continue // several changes at once
			}
			flushAll(c)
			w.Check(c, r, fmt.Sprintf("seed %d step %d", seed, step), checkExplained(t))
			if r.IntN(3) == 0 {
				w.Randomize(c, r, step)
				c.Flush() // something else comes while lists load
			}
		}
		for range 3 { // sets go a round after others took their place, and their lists then
			flushAll(c)
		}
		fresh := w.Compiler()
		if got, want := compile.Dump(c), compile.Dump(fresh); got != want {
			t.Fatalf("seed %d: only step by step:\n%s\nonly at once:\n%s", seed, only(got, want), only(want, got))
		}
	}
}

// only are the lines of a that b lacks.
func only(a, b string) string {
	other := strings.Split(b, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(a, "\n"), func(l string) bool {
		return slices.Contains(other,
			l)
	}), "\n")
}

// checkExplained compares the explanation with the verdict.
func checkExplained(t *testing.T) scene.ExplainCheck {
	return func(c *compile.Compiler, of *scene.Party, dir policy.Direction, peer netip.Addr, proto uint8, port uint16,
		want compile.PortVerdict, what string) {
		t.Helper()
		own := of.Addrs[compile.Family(peer)]
		q := explain.Flow{Src: explain.FlowEnd{Addr: peer}, Dst: explain.FlowEnd{Addr: own, Labels: of.Labels},
			Proto: proto, Port: port}
		if dir == policy.Egress {
			q.Src, q.Dst = q.Dst, q.Src
		}
		a, err := explain.Evaluate(c, q)
		if err != nil {
			t.Fatal(err)
		}
		f := [2]explain.Finding{a.Ingress, a.Egress}[dir]
		var rule uint32
		if f.Rule != nil {
			rule = f.Rule.ID
		}
		if f.Action != want.Verdict.String() || rule != want.Rule {
			t.Fatalf("%s: %s %s %s %d/%d: explained as %s by rule %d, and is %s by %d", what, of.Name, dir, peer,
				proto, port,
				f.Action, rule, want.Verdict, want.Rule)
		}
	}
}

// flushAll goes on until all lists are known.
func flushAll(c *compile.Compiler) {
	for c.Flush(); c.Loading(); {
		c.Flush()
	}
}
