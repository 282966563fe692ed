package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/policy/maps"
	"myelin/test/policy/scene"
)

// node is an engine over real tables and maps, as an agent has it.
type node struct {
	*testing.T
	db        *statedb.DB
	cluster   cluster.Tables
	policies  policy.Tables
	endpoints statedb.RWTable[*endpoint.Endpoint]
	engine    *Engine
	known     func()
}

func newWriter(t testing.TB, sizes map[string]uint32) *maps.Writer {
	d := scene.LoadMaps(t, sizes)
	now := time.Unix(1, 0)
	return maps.New(d, &bpf.Epochs{Map: d.Epochs}, func() time.Time { return now })
}

func newNode(t *testing.T, k *maps.Writer, dir string) *node {
	t.Helper()
	return newProxiedNode(t, k, dir, nil)
}

func newProxiedNode(t *testing.T, k *maps.Writer, dir string, proxy Proxy) *node {
	t.Helper()
	n := &node{T: t, db: statedb.New()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	n.cluster, err = cluster.NewTables(n.db)
	must(err)
	n.policies, err = policy.NewTables(n.db)
	must(err)
	n.endpoints, err = endpoint.NewTable(n.db)
	must(err)
	log := slog.New(slog.DiscardHandler)
	ids, err := identity.New(identity.Params{DB: n.db, Tables: n.cluster, Node: "n1", File: dir + "/identities.json",
		Log: log, Now: time.Now})
	must(err)
	n.engine, err = New(Params{
		Config: policy.Config{Host: true},
		DB:     n.db, Cluster: n.cluster, Policies: n.policies, Identities: ids.Identities(),
		Addresses: ids.Addresses(),
		Endpoints: n.endpoints, Node: "n1", Dir: dir, Maps: k, Proxy: proxy, Log: log,
		PodWait: 200 * time.Millisecond,
	})
	must(err)
	txn := n.db.WriteTxn(n.policies.Policies, n.cluster.Pods)
	done1, done2 := n.policies.Policies.RegisterInitializer(txn, "test"),
		n.cluster.Pods.RegisterInitializer(txn, "test")
	txn.Commit()
	n.known = func() {
		txn := n.db.WriteTxn(n.policies.Policies, n.cluster.Pods)
		done1(txn)
		done2(txn)
		txn.Commit()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- ids.Run(ctx) }()
	go func() { ended <- n.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

func insert[T any](n *node, table statedb.RWTable[T], rows ...T) {
	n.Helper()
	txn := n.db.WriteTxn(table)
	for _, row := range rows {
		if _, _, err := table.Insert(txn, row); err != nil {
			n.Fatal(err)
		}
	}
	txn.Commit()
}

// fill makes two pods, of which the first is on this node, and a policy.
func (n *node) fill() {
	n.Helper()
	insert(n, n.cluster.Nodes, &cluster.Node{Name: "n1", PodCIDRs: scene.Prefixes("10.0.0.0/24", "fd00::/64")})
	insert(n, n.cluster.Pods, n.pod("a", "10.0.0.2"), n.pod("b", "10.0.0.3"))
	insert(n, n.endpoints, &endpoint.Endpoint{ID: 2, ContainerID: "c1", IfName: "eth0", Namespace: "x", Pod: "a",
		IPv4: netip.MustParseAddr("10.0.0.2"), State: endpoint.StateReady})
	insert(n, n.policies.Policies, &policy.Object{Ref: n.spec(80).Ref, Specs: []policy.Spec{n.spec(80)}})
}

func (n *node) pod(app, addr string) *cluster.Pod {
	return &cluster.Pod{Namespace: "x", Name: app, NodeName: "n1", Labels: map[string]string{"app": app},
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
}

// spec lets a be reached by b at a port.
func (n *node) spec(port uint16) policy.Spec {
	ref := policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "x", Name: "p"}}
	is := func(app string) policy.Selector {
		return policy.Selector{{Source: "k8s", Key: "app", Op: policy.In, Values: []string{app}}}
	}
	b := is("b")
	return policy.Spec{Ref: ref, Subject: is("a"), Tier: policy.TierDefault, Isolates: [2]bool{true, false},
		Rules: []policy.Rule{{
			Origin: policy.Origin{Ref: ref, Path: "spec.ingress[0]"}, Action: policy.Allow,
			Peers: []policy.Peer{{Endpoints: &b}}, Ports: []policy.Port{{Proto: policy.ProtoTCP, First: port,
				Last: port}},
		}}}
}

// expect waits until b reaches a at just one port.
func (n *node) expect(d *bpf.Datapath, port uint16) {
	n.Helper()
	var got string
	want := fmt.Sprintf("%d", port)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var open []string
		for _, p := range []uint16{80, 81} {
			if scene.Lookup(n, d, 2, policy.Ingress, netip.MustParseAddr("10.0.0.3"), policy.ProtoTCP,
				p).Verdict == compile.Allowed {
				open = append(open, fmt.Sprint(p))
			}
		}
		if got = strings.Join(open, " "); got == want {
			return
		}
	}
	n.Fatalf("b reaches %s, want %s", got, want)
}

// An engine writes when all is known, and not before; what changes reaches the
// kernel; another engine over the same maps and files goes on with the same
// numbers, and closes nothing.
func TestEngine(t *testing.T) {
	k := newWriter(t, scene.SmallMaps())
	dir := t.TempDir()
	var rule uint32
	t.Run("first", func(t *testing.T) {
		n := newNode(t, k, dir)
		n.fill()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if n.engine.WaitPod(ctx, 2) == nil {
			t.Error("policies were realised before they were known")
		}
		n.known()
		if err := n.engine.WaitPod(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		n.expect(k.Datapath, 80)
		insert(n, n.policies.Policies, &policy.Object{Ref: n.spec(81).Ref, Specs: []policy.Spec{n.spec(81)}})
		n.expect(k.Datapath, 81)
		rule = scene.Lookup(t, k.Datapath, 2, policy.Ingress, netip.MustParseAddr("10.0.0.3"), policy.ProtoTCP, 81).Rule
		if row, _, ok := n.engine.Rules.Get(n.db.ReadTxn(), policy.RuleByID(rule)); !ok ||
			row.Origin.Path != "spec.ingress[0]" {
			t.Errorf("rule %d is %v", rule, row)
		}
	})
	again := maps.New(k.Datapath, k.Epochs, k.Now)
	n := newNode(t, again, dir)
	insert(n, n.policies.Policies, &policy.Object{Ref: n.spec(81).Ref, Specs: []policy.Spec{n.spec(81)}})
	n.fill()
	insert(n, n.policies.Policies, &policy.Object{Ref: n.spec(81).Ref, Specs: []policy.Spec{n.spec(81)}})
	for range 20 { // as the agent before us left it
		if got := scene.Lookup(t, k.Datapath, 2, policy.Ingress, netip.MustParseAddr("10.0.0.3"), policy.ProtoTCP,
			81); got.Verdict != compile.Allowed {
			t.Fatal("closed before the new agent knew")
		}
		time.Sleep(time.Millisecond)
	}
	n.known()
	if err := n.engine.WaitPod(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	n.expect(k.Datapath, 81)
	if got := scene.Lookup(t, k.Datapath, 2, policy.Ingress, netip.MustParseAddr("10.0.0.3"), policy.ProtoTCP,
		81).Rule; got != rule {
		t.Errorf("rule %d is %d after a restart", rule, got)
	}
}

// With the first endpoint whose policies are in the kernel, all addresses are:
// also where many became known in one transaction, just before.
func TestBegins(t *testing.T) {
	const many = 20_000
	sizes := scene.SmallMaps()
	sizes["peers"], sizes["peer_classes"] = 1<<16, 1<<16
	k := newWriter(t, sizes)
	n := newNode(t, k, t.TempDir())
	n.fill()
	pods := make([]*cluster.Pod, many)
	for i := range pods {
		pods[i] = n.pod(fmt.Sprint("p", i), fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff))
	}
	insert(n, n.cluster.Pods, pods...)
	n.known()
	if err := n.engine.WaitPod(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := scene.Counts(t, k.Datapath)[1]; got < many {
		t.Errorf("%d addresses are in the kernel, want %d", got, many)
	}
}

// TestWaitPod: after a while, an unknown pod is treated as reserved:init; the next pod in its slot is waited for anew.
func TestWaitPod(t *testing.T) {
	k := newWriter(t, scene.SmallMaps())
	n := newNode(t, k, t.TempDir())
	n.known()
	e := &endpoint.Endpoint{ID: 3, ContainerID: "c2", IfName: "eth0", Namespace: "x", Pod: "late",
		State: endpoint.StateCreating}
	insert(n, n.endpoints, e)
	usual := n.engine.PodWait
	n.engine.PodWait = time.Hour // longer than any machine is busy: without policies there is nothing to wait for
	if err := n.engine.WaitPod(t.Context(), 3); err != nil {
		t.Errorf("without policies: %v", err)
	}
	n.engine.PodWait = usual
	insert(n, n.policies.Policies, &policy.Object{Ref: policy.Ref{Kind: "NetworkPolicy",
		Key: cluster.Key{Namespace: "x", Name: "p"}}})
	begin := time.Now()
	if err := n.engine.WaitPod(t.Context(), 3); err != nil || time.Since(begin) < usual {
		t.Errorf("got %v after %s", err, time.Since(begin))
	}
	insert(n, n.cluster.Pods, n.pod("late", "10.0.0.9"))
	if err := n.engine.WaitPod(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.engine.WaitPod(ctx, 4); err == nil || !strings.Contains(err.Error(), "endpoint 4") {
		t.Errorf("of an unused slot: got %v", err)
	}
}
