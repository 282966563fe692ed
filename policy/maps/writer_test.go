package maps

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
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/test/policy/scene"
)

// clock is moved by tests.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func kernelFor(t testing.TB, sizes map[string]uint32) (*Writer, *clock) {
	d := scene.LoadMaps(t, sizes)
	c := &clock{time.Unix(1, 0)}
	return New(d, &bpf.Epochs{Map: d.Epochs}, c.now), c
}

// compilerOver makes a compiler that goes on with what maps have.
func compilerOver(w *scene.Scene, k *Writer) *compile.Compiler {
	w.T.Helper()
	last, lastPeer, err := k.Adopt()
	if err != nil {
		w.T.Fatal(err)
	}
	c := w.NewCompiler(lastPeer)
	c.Resume(last)
	return c
}

// desired are how many rows maps should have.
func desired(c *compile.Compiler, k *Writer) (out [5]int) {
	for _, t := range c.Endpoints() {
		if _, some := k.endpointRow(c, t); some {
			out[0]++
		}
	}
	for p := range c.Addresses() {
		if p.IsSingleIP() {
			out[1]++
		} else {
			out[2]++
		}
	}
	out[4] = 1 // of the set that allows nothing
	for s := range c.Sets() {
		out[3] += len(s.Peers)
		for class := range s.Classes() {
			out[4] += len(class.Verdicts)
		}
	}
	return out
}

// mustMove applies what changed, of which CPUs may have kept what was before.
func (k *Writer) mustMove(t *testing.T, c *compile.Compiler) {
	t.Helper()
	before, err1 := k.Epochs.Generation()
	p := c.Flush()
	changes := len(p.Additions) + len(p.Addresses)
	err2 := k.Apply(c, p)
	after, err3 := k.Epochs.Generation()
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
	k, now := kernelFor(t, scene.SmallMaps())
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := scene.RandomScene(t, r)
		c := compilerOver(w, k)
		if err := errors.Join(k.Apply(c, c.Flush()), k.Prune(c)); err != nil {
			t.Fatal(err)
		}
		for step := range 15 {
			w.Randomize(c, r, step)
			k.mustMove(t, c)
			w.CheckMaps(k.Datapath, r, fmt.Sprintf("seed %d step %d", seed, step))
			now.Time = now.Add(grace / 3)
			if _, err := k.Sweep(false); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Apply(c, c.Flush()); err != nil {
			t.Fatal(err)
		}
		now.Time = now.Add(2 * grace)
		if _, err := k.Sweep(false); err != nil {
			t.Fatal(err)
		}
		if got, want := scene.Counts(t, k.Datapath), desired(c, k); got != want {
			t.Fatalf("seed %d: the maps have %v rows, want %v", seed, got, want)
		}
	}
}

// TestInterrupted: whichever write fails, Apply returns an error, and the next round completes the update.
func TestInterrupted(t *testing.T) {
	k, _ := kernelFor(t, scene.SmallMaps())
	r := rand.New(rand.NewPCG(5, 5))
	w := scene.RandomScene(t, r)
	c := compilerOver(w, k)
	if err := k.Apply(c, c.Flush()); err != nil {
		t.Fatal(err)
	}
	failures := 0
	for step := range 60 {
		w.Randomize(c, r, step)
		p := c.Flush()
		n, fails := 0, r.IntN(6)
		k.beforeWrite = func(op string) error {
			if n++; n == fails {
				failures++
				return errors.New(op)
			}
			return nil
		}
		err := k.Apply(c, p)
		k.beforeWrite = nil
		if n >= fails && fails > 0 && err == nil {
			t.Fatalf("step %d: no error was returned", step)
		}
		if err := errors.Join(k.Apply(c, c.Flush()), k.Apply(c, c.Flush())); err != nil {
			t.Fatal(err)
		}
		w.CheckMaps(k.Datapath, r, fmt.Sprint("step ", step))
	}
	if failures < 10 {
		t.Errorf("only %d writes failed", failures)
	}
}

// sample is all verdicts that a test looks at again and again.
func sample(w *scene.Scene, verdict func(of, peer *scene.Party, a netip.Addr,
	dir policy.Direction) compile.Verdict) (out []compile.Verdict) {
	for _, of := range w.Things {
		for _, peer := range w.Things {
			for _, a := range peer.Addrs {
				if of.Slot != 0 && of != peer {
					out = append(out, verdict(of, peer, a, policy.Ingress), verdict(of, peer, a, policy.Egress))
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
	k, now := kernelFor(t, scene.SmallMaps())
	r := rand.New(rand.NewPCG(7, 7))
	w := scene.RandomScene(t, r)
	c := compilerOver(w, k)
	if err := k.Apply(c, c.Flush()); err != nil {
		t.Fatal(err)
	}
	c.SetSlice(slice)
	naive := func(of, peer *scene.Party, a netip.Addr, dir policy.Direction) compile.Verdict {
		v, _ := w.Naive(of, dir, peer, a, policy.ProtoTCP, 80)
		return v
	}
	kernel := func(of, peer *scene.Party, a netip.Addr, dir policy.Direction) compile.Verdict {
		return scene.Lookup(t, k.Datapath, of.Slot, dir, a, policy.ProtoTCP, 80).Verdict
	}
	changes := 0
	for step := range 60 {
		before, things := sample(w, naive), fmt.Sprint(w.Things)
		w.Randomize(c, r, step)
		after := sample(w, naive)
		check := func(op string) error {
			if fmt.Sprint(w.Things) != things {
				return nil // another pod, with another name
			}
			for i, got := range sample(w, kernel) {
				if got != before[i] && got != after[i] {
					t.Errorf("step %d, at %s: verdict %d is %s, was %s and will be %s", step, op, i, got, before[i],
						after[i])
				}
				if before[i] != after[i] {
					changes++
				}
			}
			return nil
		}
		k.beforeWrite = check
		for n := 0; n < 2 || c.Loading(); n++ {
			if err := k.Apply(c, c.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		k.beforeWrite = nil
		check("the end")
		now.Time = now.Add(2 * grace)
		k.Sweep(false)
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
			"peers": {"peers": 10}, "peer_prefixes": {"peer_prefixes": 8}, "peer_classes": {"peer_classes": 5},
			"verdicts": {"verdicts": 10},
		} {
			t.Run(fmt.Sprintf("%s open %t", full, open), func(t *testing.T) { testFull(t, full, sizes, open) })
		}
	}
}

func testFull(t *testing.T, full string, sizes map[string]uint32, open bool) {
	all := scene.SmallMaps()
	maps.Copy(all, sizes)
	k, now := kernelFor(t, all)
	w := scene.New(t)
	w.Config.Open = open
	w.Things = []*scene.Party{fullPod("a", "10.0.0.1", 70000, 2), fullPod("b", "10.0.0.2", 70001, 3)}
	c := compilerOver(w, k)
	few, many := fullSpecs("a", 1), fullSpecs("b", 12)
	c.SetPolicy(few[0].Ref, few)
	if err := k.Apply(c, c.Flush()); err != nil {
		t.Fatal(err)
	}
	c.SetPolicy(many[0].Ref, many)
	var text string
	for range 3 {
		if err := k.Apply(c, c.Flush()); err != nil {
			text = err.Error()
		}
		now.Time = now.Add(2 * grace)
		k.Sweep(false)
	}
	s := c.Endpoint(3).Sets[policy.Egress][0]
	if s.Err != nil {
		text = s.Err.Error()
	}
	if want := fmt.Sprintf("map %s is full: it has room for %d rows", full, all[full]); !strings.Contains(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
	inside, outside := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	verdicts := func() (out []string) {
		for _, slot := range []uint16{2, 3} {
			for _, a := range []netip.Addr{inside, outside} {
				found := scene.Lookup(t, k.Datapath, slot, policy.Egress, a, policy.ProtoTCP, 1000)
				out = append(out, found.Verdict.String())
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
	c.SetPolicy(many[0].Ref, fullSpecs("b", 1))
	var err error
	for range 3 {
		err = k.Apply(c, c.Flush())
	}
	if err != nil {
		t.Error(err)
	}
	if got := verdicts(); fmt.Sprint(got) != fmt.Sprint([]string{"allow", "no rule", "allow", "no rule"}) {
		t.Errorf("with room again: got %v", got)
	}
}

// fullPod is a pod whose only label is its name.
func fullPod(name, address string, id uint32, slot uint16) *scene.Party {
	return &scene.Party{Name: name, Labels: []string{"k8s:app=" + name},
		Addrs: []netip.Addr{netip.MustParseAddr(address)}, Id: id, Slot: slot}
}

// fullSpecs let an app reach n prefixes, and as many addresses, each by a rule
// of its own with a port of its own.
func fullSpecs(app string, n int) []policy.Spec {
	s := policy.Spec{Ref: policy.Ref{Kind: "NetworkPolicy", Key: scene.Key(app)}, Tier: policy.TierDefault,
		Isolates: [2]bool{false, true}}
	s.Subject = policy.Selector{{Source: "k8s", Key: "app", Op: policy.In, Values: []string{app}}}
	for i := range n {
		list := scene.Prefixes(fmt.Sprintf("192.0.2.%d/32", 1+i), fmt.Sprintf("203.0.%d.0/24", i))
		s.Rules = append(s.Rules, policy.Rule{
			Origin: policy.Origin{Ref: s.Ref, Path: fmt.Sprintf("spec.egress[%d]", i)}, Direction: policy.Egress,
			Action: policy.Allow,
			Peers:  []policy.Peer{{Prefixes: &policy.Prefixes{Include: list}}},
			Ports: []policy.Port{{Proto: policy.ProtoTCP,
				First: uint16(1000 + i), Last: uint16(1000 + i)}},
		})
	}
	return []policy.Spec{s}
}
