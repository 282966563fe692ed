package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/l7/config"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/maps"
	"myelin/test/policy/scene"
)

// listener is a proxy that takes what it is told, or nothing while err is set.
type listener struct {
	mu   sync.Mutex
	last *config.Config
	err  error
	// early is called with each configuration before it is taken.
	early func(*config.Config)
}

func (l *listener) Apply(_ context.Context, c *config.Config) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.early(c)
	if l.err != nil {
		return l.err
	}
	l.last = c
	return nil
}

func (l *listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// proxiedNode is a node with a listener, which checks that the maps never have a number that it does not know.
func proxiedNode(t *testing.T, k *maps.Writer, dir string) (*node, *listener) {
	t.Helper()
	l := &listener{last: &config.Config{}}
	l.early = func(*config.Config) { l.check(t, k.Datapath) }
	n := newProxiedNode(t, k, dir, l)
	n.fill()
	return n, l
}

// check looks for numbers in the maps that the listener does not know, but for those of an agent before.
func (l *listener) check(t *testing.T, d *bpf.Datapath) {
	t.Helper()
	if len(l.last.Rules) == 0 {
		return
	}
	err := bpf.Each(d.Verdicts, func(key *bpf.DatapathVerdictKey, v *bpf.DatapathVerdict) bool {
		known := slices.ContainsFunc(l.last.Rules, func(r config.Rule) bool { return r.Number == v.Rule })
		if v.Proxy != 0 && !known {
			t.Errorf("a verdict has rule %d, which the proxy does not know", v.Rule)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

// l7Spec lets a be reached by b at port 80 with requests for a path, and reach names at port 443.
func (n *node) l7Spec(name, path string) policy.Spec {
	s := n.spec(80)
	s.Ref.Name = name
	s.Isolates = [2]bool{true, true}
	r := &s.Rules[0]
	r.Origin = policy.Origin{Ref: s.Ref, Path: "spec.ingress[0].toPorts[0]"}
	r.L7 = &policy.L7{HTTP: []policy.HTTPRule{{Path: path}}}
	s.Rules = append(s.Rules, policy.Rule{
		Origin: policy.Origin{Ref: s.Ref, Path: "spec.egress[0]"}, Direction: policy.Egress, Action: policy.Allow,
		Peers: []policy.Peer{{Names: []policy.NamePattern{{Name: "a.example"}, {Pattern: "*.b"}}}},
		Ports: []policy.Port{{Proto: policy.ProtoTCP, First: 443, Last: 443}},
	})
	return s
}

func (n *node) put(specs ...policy.Spec) {
	n.Helper()
	for _, s := range specs {
		insert(n, n.policies.Policies, &policy.Object{Ref: s.Ref, Specs: []policy.Spec{s}})
	}
}

// until waits for something.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came that %s", what)
		}
	}
}

func (n *node) ingress(k *maps.Writer) compile.PortVerdict {
	return scene.Lookup(n, k.Datapath, 2, policy.Ingress, netip.MustParseAddr("10.0.0.3"), policy.ProtoTCP, 80)
}

// parts are the paths that the proxy allows by a number.
func (n *node) parts(number uint32) (out []string) {
	c, _ := n.engine.ProxyConfig()
	for _, r := range c.Rules {
		for _, p := range r.Parts {
			if r.Number == number {
				out = append(out, p.L7.HTTP[0].Path)
			}
		}
	}
	slices.Sort(out)
	return out
}

// The proxy knows numbers, selectors and endpoints before the kernel has them; the same rules have the same numbers
// after a restart, too.
func TestProxy(t *testing.T) {
	k := newWriter(t, scene.SmallMaps())
	dir := t.TempDir()
	var number, selector uint32
	t.Run("first", func(t *testing.T) {
		n, l := proxiedNode(t, k, dir)
		n.put(n.l7Spec("p", "/p"), n.l7Spec("q", "/q"))
		n.known()
		if err := n.engine.WaitPod(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		v := n.ingress(k)
		number = v.Rule
		if !v.Proxy || v.Verdict != compile.Allowed || !slices.Equal(n.parts(number), []string{"/p", "/q"}) {
			t.Fatalf("got %+v, and the proxy enforces %q", v, n.parts(number))
		}
		row, _, ok := n.engine.Rules.Get(n.db.ReadTxn(), policy.RuleByID(number))
		if !ok || !strings.Contains(row.Name(), "x/p") || !strings.Contains(row.Name(), " or NetworkPolicy x/q") {
			t.Errorf("rule %d is %v", number, row)
		}
		c, _ := n.engine.ProxyConfig()
		if len(c.Selectors) != 1 || len(c.Endpoints) != 1 || len(c.Selectors[0].Names) != 2 {
			t.Fatalf("the proxy has selectors %+v and endpoints %+v", c.Selectors, c.Endpoints)
		}
		selector = c.Selectors[0].Number
		n.selected(t, k, c.Endpoints[0], selector)
		l.check(t, k.Datapath)
		n.put(n.spec(80)) // of "p": without L7
		until(t, "flows pass without the proxy", func() bool { return !n.ingress(k).Proxy })
		n.put(n.l7Spec("p", "/p"))
		until(t, "flows pass through the proxy again", func() bool { return n.ingress(k).Proxy })
		if again := n.ingress(k).Rule; again != number {
			t.Errorf("the same rules have number %d after %d", again, number)
		}
	})
	t.Run("second", func(t *testing.T) {
		n, l := proxiedNode(t, k, dir)
		n.put(n.l7Spec("p", "/p"), n.l7Spec("q", "/q"))
		n.known()
		if err := n.engine.WaitPod(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		c, _ := n.engine.ProxyConfig()
		if got := n.ingress(k).Rule; got != number || c.Selectors[0].Number != selector {
			t.Errorf("rule %d became %d, and selector %d became %d", number, got, selector, c.Selectors[0].Number)
		}
		l.check(t, k.Datapath)
	})
}

// selected checks what the maps have for a selector.
func (n *node) selected(t *testing.T, k *maps.Writer, e config.Endpoint, selector uint32) {
	t.Helper()
	if e.Slot != 2 || e.Pod != (cluster.Key{Namespace: "x", Name: "a"}) ||
		!slices.Equal(e.Selectors, []uint32{selector}) ||
		!slices.Equal(e.Addresses, []netip.Addr{netip.MustParseAddr("10.0.0.2")}) {
		t.Errorf("the proxy has endpoint %+v", e)
	}
	for port, want := range map[uint16]compile.Verdict{443: compile.Allowed, 80: compile.NoRule} {
		got := scene.Lookup(t, k.Datapath, 2, policy.Egress, compile.SelectorAddress(selector), policy.ProtoTCP, port)
		world := scene.Lookup(t, k.Datapath, 2, policy.Egress, netip.MustParseAddr("192.0.2.1"), policy.ProtoTCP, port)
		if got.Verdict != want || world.Verdict != compile.NoRule {
			t.Errorf("port %d: got %s for the names, and %s for others", port, got.Verdict, world.Verdict)
		}
	}
	var row bpf.DatapathEndpointPolicy
	if err := k.Datapath.Policies.Lookup(uint32(2), &row); err != nil ||
		row.L7&uint8(bpf.DatapathPolicyL7POLICY_NAMES) == 0 {
		t.Errorf("the endpoint's row is %+v, %v", row, err)
	}
}

// While the proxy takes nothing, the rows that were in force stay, new pods wait, and the table says why.
func TestProxyFails(t *testing.T) {
	k := newWriter(t, scene.SmallMaps())
	n, l := proxiedNode(t, k, t.TempDir())
	n.known()
	n.expect(k.Datapath, 80)
	l.fail(errors.New("no such socket"))
	n.put(n.l7Spec("p", "/p"), n.l7Spec("q", "/q"))
	failed := func() bool {
		row, _, ok := n.engine.Realised.Get(n.db.ReadTxn(), policy.RealisedBySlot(2))
		return ok && row.Waiting && strings.Contains(row.Error, "tell the proxy of policies: no such socket")
	}
	until(t, "the table says why", failed)
	insert(n, n.cluster.Pods, n.pod("c", "10.0.0.4")) // what comes later waits, too
	if v := n.ingress(k); v.Verdict != compile.Allowed || v.Proxy {
		t.Errorf("got %+v", v)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if n.engine.WaitPod(ctx, 2) == nil {
		t.Error("the pod's policies are said to be in the kernel")
	}
	l.fail(nil)
	until(t, "flows pass through the proxy", func() bool { return n.ingress(k).Proxy })
	until(t, "the table says that all is well", func() bool { return !failed() })
	if got := n.parts(n.ingress(k).Rule); !slices.Equal(got, []string{"/p", "/q"}) {
		t.Errorf("the proxy enforces %q", got)
	}
	until(t, "the pod that came later is known", func() bool {
		var id uint32
		return k.Datapath.Peers.Lookup(bpf.Addr(netip.MustParseAddr("10.0.0.4")), &id) == nil
	})
}

// Without a proxy, what needs it allows nothing.
func TestNoProxy(t *testing.T) {
	k := newWriter(t, scene.SmallMaps())
	n := newNode(t, k, t.TempDir())
	n.fill()
	n.put(n.l7Spec("p", "/p"))
	n.known()
	if err := n.engine.WaitPod(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if v := n.ingress(k); v.Verdict != compile.NoRule {
		t.Errorf("got %+v", v)
	}
}
