package policy

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
)

// clock is moved by tests.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func kernelFor(t testing.TB, sizes map[string]uint32) (*Kernel, *clock) {
	d := loadMaps(t, sizes)
	c := &clock{time.Unix(1, 0)}
	return NewKernel(d, &bpf.Epochs{Map: d.Epochs}, c.now), c
}

// compilerOver makes a compiler that goes on with what maps have.
func compilerOver(w *scene, k *Kernel) *compiler {
	w.t.Helper()
	last, lastPeer, err := k.adopt()
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.newCompiler(lastPeer)
	c.resume(last)
	return c
}

// desired are how many rows maps should have.
func desired(c *compiler, k *Kernel) (out [5]int) {
	for _, t := range c.inOrder() {
		if _, some := k.targetRow(c, t); some {
			out[0]++
		}
	}
	for p := range c.addresses() {
		if p.IsSingleIP() {
			out[1]++
		} else {
			out[2]++
		}
	}
	out[4] = 1 // of the set that allows nothing
	for s := range c.allSets() {
		out[3] += len(s.peers)
		for class := range s.classesOf() {
			out[4] += len(class.rows)
		}
	}
	return out
}

// mustMove applies what changed, of which CPUs may have kept what was before.
func (k *Kernel) mustMove(t *testing.T, c *compiler) {
	t.Helper()
	before, err1 := k.epochs.Generation()
	p := c.flush()
	changes := len(p.additions) + len(p.changes)
	err2 := k.apply(c, p)
	after, err3 := k.epochs.Generation()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if changes > 0 && before == after {
		t.Fatalf("%d changes left the generation as it was", changes)
	}
}

// The maps say what a walk over all rules says, after each of many changes; what
// is over leaves no row; and so it is with another agent over the same maps.
func TestKernelRandom(t *testing.T) {
	k, now := kernelFor(t, smallMaps())
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := randomScene(t, r)
		c := compilerOver(w, k)
		if err := errors.Join(k.apply(c, c.flush()), k.prune(c)); err != nil {
			t.Fatal(err)
		}
		for step := range 15 {
			w.randomize(c, r, step)
			k.mustMove(t, c)
			w.checkMaps(k.datapath, r, fmt.Sprintf("seed %d step %d", seed, step))
			now.Time = now.Add(grace / 3)
			if _, err := k.sweep(false); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.apply(c, c.flush()); err != nil {
			t.Fatal(err)
		}
		now.Time = now.Add(2 * grace)
		if _, err := k.sweep(false); err != nil {
			t.Fatal(err)
		}
		if got, want := counts(t, k.datapath), desired(c, k); got != want {
			t.Fatalf("seed %d: the maps have %v rows, want %v", seed, got, want)
		}
	}
}

// Whatever write fails, somebody is told, and the next round mends it.
func TestInterrupted(t *testing.T) {
	k, _ := kernelFor(t, smallMaps())
	r := rand.New(rand.NewPCG(5, 5))
	w := randomScene(t, r)
	c := compilerOver(w, k)
	if err := k.apply(c, c.flush()); err != nil {
		t.Fatal(err)
	}
	failures := 0
	for step := range 60 {
		w.randomize(c, r, step)
		p := c.flush()
		n, fails := 0, r.IntN(6)
		k.before = func(op string) error {
			if n++; n == fails {
				failures++
				return errors.New(op)
			}
			return nil
		}
		err := k.apply(c, p)
		k.before = nil
		if n >= fails && fails > 0 && err == nil {
			t.Fatalf("step %d: nobody was told", step)
		}
		if err := errors.Join(k.apply(c, c.flush()), k.apply(c, c.flush())); err != nil {
			t.Fatal(err)
		}
		w.checkMaps(k.datapath, r, fmt.Sprint("step ", step))
	}
	if failures < 10 {
		t.Errorf("only %d writes failed", failures)
	}
}

// sample is all verdicts that a test looks at again and again.
func sample(w *scene, verdict func(of, peer *thing, a netip.Addr, dir Direction) ruling) (out []ruling) {
	for _, of := range w.things {
		for _, peer := range w.things {
			for _, a := range peer.addrs {
				if of.slot != 0 && of != peer {
					out = append(out, verdict(of, peer, a, Ingress), verdict(of, peer, a, Egress))
				}
			}
		}
	}
	return out
}

// While one thing changes, each verdict is what it was before, or what it will
// be, after every single write.
func TestAtomic(t *testing.T) {
	for _, slice := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("slice=%d", slice), func(t *testing.T) { testAtomic(t, slice) })
	}
}

func testAtomic(t *testing.T, slice int) {
	k, now := kernelFor(t, smallMaps())
	r := rand.New(rand.NewPCG(7, 7))
	w := randomScene(t, r)
	c := compilerOver(w, k)
	if err := k.apply(c, c.flush()); err != nil {
		t.Fatal(err)
	}
	c.setSlice(slice)
	naive := func(of, peer *thing, a netip.Addr, dir Direction) ruling {
		v, _ := w.naive(of, dir, peer, a, ProtoTCP, 80)
		return v
	}
	kernel := func(of, peer *thing, a netip.Addr, dir Direction) ruling {
		return ask(t, k.datapath, of.slot, dir, a, ProtoTCP, 80).ruling
	}
	changes := 0
	for step := range 60 {
		before, things := sample(w, naive), fmt.Sprint(w.things)
		w.randomize(c, r, step)
		after := sample(w, naive)
		check := func(op string) error {
			if fmt.Sprint(w.things) != things {
				return nil // another pod, with another name
			}
			for i, got := range sample(w, kernel) {
				if got != before[i] && got != after[i] {
					t.Errorf("step %d, at %s: verdict %d is %s, was %s and will be %s", step, op, i, got, before[i], after[i])
				}
				if before[i] != after[i] {
					changes++
				}
			}
			return nil
		}
		k.before = check
		for n := 0; n < 2 || c.loading(); n++ {
			if err := k.apply(c, c.flush()); err != nil {
				t.Fatal(err)
			}
		}
		k.before = nil
		check("the end")
		now.Time = now.Add(2 * grace)
		k.sweep(false)
	}
	if changes < 100 {
		t.Errorf("only %d verdicts changed", changes)
	}
}

// Rules that don't fit allow nothing, or everything if so configured, and say
// why; others hold. When there is room, they hold too.
func TestFull(t *testing.T) {
	for _, open := range []bool{false, true} {
		for full, sizes := range map[string]map[string]uint32{
			"peers": {"peers": 10}, "peer_prefixes": {"peer_prefixes": 8}, "peer_classes": {"peer_classes": 5}, "verdicts": {"verdicts": 10},
		} {
			t.Run(fmt.Sprintf("%s open %t", full, open), func(t *testing.T) { testFull(t, full, sizes, open) })
		}
	}
}

func testFull(t *testing.T, full string, sizes map[string]uint32, open bool) {
	all := smallMaps()
	maps.Copy(all, sizes)
	k, now := kernelFor(t, all)
	w := newScene(t)
	w.config.Open = open
	w.things = []*thing{
		{name: "a", labels: []string{"k8s:app=a"}, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, id: 70000, slot: 2},
		{name: "b", labels: []string{"k8s:app=b"}, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, id: 70001, slot: 3},
	}
	c := compilerOver(w, k)
	few, many := fullSpecs("a", 1), fullSpecs("b", 12)
	c.setPolicy(few[0].Ref, few)
	if err := k.apply(c, c.flush()); err != nil {
		t.Fatal(err)
	}
	c.setPolicy(many[0].Ref, many)
	var text string
	for range 3 {
		if err := k.apply(c, c.flush()); err != nil {
			text = err.Error()
		}
		now.Time = now.Add(2 * grace)
		k.sweep(false)
	}
	s := c.target(3).sets[Egress][0]
	if s.err != nil {
		text = s.err.Error()
	}
	if want := fmt.Sprintf("map %s is full: it has room for %d rows", full, all[full]); !strings.Contains(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
	inside, outside := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	verdicts := func() (out []string) {
		for _, slot := range []uint16{2, 3} {
			for _, a := range []netip.Addr{inside, outside} {
				out = append(out, ask(t, k.datapath, slot, Egress, a, ProtoTCP, 1000).ruling.String())
			}
		}
		return out
	}
	want := []string{"allow", "no rule", "no rule", "no rule"}
	if open {
		want = []string{"allow", "no rule", "allow", "allow"}
	}
	if got := verdicts(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("full: got %v, want %v", got, want)
	}
	c.setPolicy(many[0].Ref, fullSpecs("b", 1))
	var err error
	for range 3 {
		err = k.apply(c, c.flush())
	}
	if err != nil {
		t.Error(err)
	}
	if got := verdicts(); fmt.Sprint(got) != fmt.Sprint([]string{"allow", "no rule", "allow", "no rule"}) {
		t.Errorf("with room again: got %v", got)
	}
}

// fullSpecs let an app reach n prefixes, and as many addresses, each by a rule
// of its own with a port of its own.
func fullSpecs(app string, n int) []Spec {
	s := Spec{Ref: Ref{Kind: "NetworkPolicy", Key: key(app)}, Tier: TierDefault, Isolates: [2]bool{false, true}}
	s.Subject = Selector{{Source: "k8s", Key: "app", Op: In, Values: []string{app}}}
	for i := range n {
		list := prefixes(fmt.Sprintf("192.0.2.%d/32", 1+i), fmt.Sprintf("203.0.%d.0/24", i))
		s.Rules = append(s.Rules, Rule{
			Origin: Origin{Ref: s.Ref, Path: fmt.Sprintf("spec.egress[%d]", i)}, Direction: Egress, Action: Allow,
			Peers: []Peer{{Prefixes: &Prefixes{Include: list}}}, Ports: []Port{{Proto: ProtoTCP, First: uint16(1000 + i), Last: uint16(1000 + i)}},
		})
	}
	return []Spec{s}
}
