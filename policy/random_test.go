package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
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
		w := randomScene(t, r)
		c := w.compiler()
		c.setSlice(int(seed % 4)) // most lists load in several rounds
		for step := range 25 {
			w.randomize(c, r, step)
			if r.IntN(3) == 0 {
				continue // several changes at once
			}
			flushAll(c)
			w.check(c, r, fmt.Sprintf("seed %d step %d", seed, step), checkExplained(t))
			if r.IntN(3) == 0 {
				w.randomize(c, r, step)
				c.flush() // something else comes while lists load
			}
		}
		for range 3 { // sets go a round after others took their place, and their lists then
			flushAll(c)
		}
		fresh := w.compiler()
		if got, want := dump(c), dump(fresh); got != want {
			t.Fatalf("seed %d: only step by step:\n%s\nonly at once:\n%s", seed, only(got, want), only(want, got))
		}
	}
}

// only are the lines of a that b lacks.
func only(a, b string) string {
	other := strings.Split(b, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(a, "\n"), func(l string) bool { return slices.Contains(other, l) }), "\n")
}

// checkExplained compares the explanation with the verdict.
func checkExplained(t *testing.T) explainCheck {
	return func(c *compiler, of *thing, dir Direction, peer netip.Addr, proto uint8, port uint16, want row, what string) {
		t.Helper()
		own := of.addrs[familyOf(peer)]
		q := Question{Src: Who{Addr: peer}, Dst: Who{Addr: own, Labels: of.labels}, Proto: proto, Port: port}
		if dir == Egress {
			q.Src, q.Dst = q.Dst, q.Src
		}
		a, err := evaluate(c, q)
		if err != nil {
			t.Fatal(err)
		}
		f := [2]Finding{a.Ingress, a.Egress}[dir]
		var rule uint32
		if f.Rule != nil {
			rule = f.Rule.ID
		}
		if f.Action != want.ruling.String() || rule != want.rule {
			t.Fatalf("%s: %s %s %s %d/%d: explained as %s by rule %d, and is %s by %d", what, of.name, dir, peer, proto, port, f.Action, rule, want.ruling, want.rule)
		}
	}
}

// flushAll goes on until all lists are known.
func flushAll(c *compiler) {
	for c.flush(); c.loading(); {
		c.flush()
	}
}
