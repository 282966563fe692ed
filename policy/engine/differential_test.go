package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/bench/results"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/identity"
	"myelin/policy/maps"
	"myelin/policy/parse"
	"myelin/test/policy/random"
	"myelin/test/policy/reference"
	"myelin/test/policy/scene"
)

// agent is a node's tables and engine, filled from a world.
type agent struct {
	testing.TB
	db        *statedb.DB
	cluster   cluster.Tables
	policies  policy.Tables
	endpoints statedb.RWTable[*endpoint.Endpoint]
	engine    *engine.Engine
	slots     map[netip.Addr]uint16
}

func (a *agent) must(errs ...error) {
	a.Helper()
	if err := errors.Join(errs...); err != nil {
		a.Fatal(err)
	}
}

func newAgent(t testing.TB, w *reference.World, k *maps.Writer) *agent {
	t.Helper()
	a := &agent{TB: t, db: statedb.New(), slots: map[netip.Addr]uint16{}}
	var err1, err2, err3 error
	a.cluster, err1 = cluster.NewTables(a.db)
	a.policies, err2 = policy.NewTables(a.db)
	a.endpoints, err3 = endpoint.NewTable(a.db)
	a.must(err1, err2, err3)
	log := slog.New(slog.DiscardHandler)
	ids, err := identity.New(identity.Params{DB: a.db, Tables: a.cluster, Node: w.Node, ClusterName: w.Cluster,
		Log: log, Now: time.Now})
	a.must(err)
	a.engine, err = engine.New(engine.Params{
		DB: a.db, Cluster: a.cluster, Policies: a.policies, Identities: ids.Identities(), Addresses: ids.Addresses(),
		Endpoints: a.endpoints, Node: w.Node, ClusterName: w.Cluster, Config: policy.Config{Host: true,
			CIDRNodes: w.CIDRNodes}, Maps: k, Log: log, Proxy: proxyOf(w),
	})
	a.must(err)
	txn := a.db.WriteTxn(a.cluster.Nodes, a.cluster.Namespaces, a.cluster.Pods, a.cluster.Services, a.cluster.Slices,
		a.policies.Policies, a.policies.Groups, a.endpoints)
	a.fillCluster(txn, w)
	a.fillPolicies(txn, w)
	txn.Commit()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ids.Run(ctx) }()
	for _, table := range []statedb.TableMeta{ids.Identities(), ids.Addresses()} {
		if ok, wait := table.Initialized(a.db.ReadTxn()); !ok {
			<-wait
		}
	}
	cancel()
	a.must(<-ended, a.engine.Settle())
	return a
}

func put[T any](a *agent, txn statedb.WriteTxn, table statedb.RWTable[T], row T, err error) T {
	a.Helper()
	a.must(err)
	_, _, err = table.Insert(txn, row)
	a.must(err)
	return row
}

func (a *agent) fillCluster(txn statedb.WriteTxn, w *reference.World) {
	a.Helper()
	for _, o := range w.Nodes {
		row, err := cluster.FromNode(o, "")
		put(a, txn, a.cluster.Nodes, row, err)
		if row.Name == w.Node {
			for _, addr := range identity.NodeAddresses(row) {
				a.slots[addr] = endpoint.HostID
			}
		}
	}
	for _, o := range w.Namespaces {
		row, err := cluster.FromNamespace(o, "")
		put(a, txn, a.cluster.Namespaces, row, err)
	}
	for _, o := range w.Services {
		row, err := cluster.FromService(o, "")
		put(a, txn, a.cluster.Services, row, err)
	}
	for _, o := range w.EndpointSlices {
		row, err := cluster.FromEndpointSlice(o, "")
		put(a, txn, a.cluster.Slices, row, err)
	}
	for i, o := range w.Pods {
		row, err := cluster.FromPod(o, "")
		put(a, txn, a.cluster.Pods, row, err)
		if row.NodeName == w.Node && row.OwnsAddresses() {
			e := &endpoint.Endpoint{
				ID: uint16(endpoint.MinID + i), ContainerID: row.Key().String(), Namespace: row.Namespace,
				Pod:  row.Name,
				IPv4: row.IPv4(), IPv6: row.IPv6(), State: endpoint.StateReady,
			}
			put(a, txn, a.endpoints, e, nil)
			for _, addr := range row.Addresses {
				a.slots[addr] = e.ID
			}
		}
	}
}

func (a *agent) fillPolicies(txn statedb.WriteTxn, w *reference.World) {
	a.Helper()
	add := func(kind, namespace, name string, specs []policy.Spec, err error) {
		a.Helper()
		ref := policy.Ref{Kind: kind, Key: cluster.Key{Namespace: namespace, Name: name}}
		put(a, txn, a.policies.Policies, &policy.Object{Ref: ref, Specs: specs}, err)
	}
	for _, o := range w.NetworkPolicies {
		specs, err := parse.NetworkPolicy(o, "", nil)
		add("NetworkPolicy", o.Namespace, o.Name, specs, err)
	}
	for _, o := range w.CiliumNetworkPolicies {
		specs, err := parse.CiliumNetworkPolicy(o, "", nil)
		add("CiliumNetworkPolicy", o.Namespace, o.Name, specs, err)
	}
	for _, o := range w.CiliumClusterwideNetworkPolicies {
		specs, err := parse.CiliumClusterwideNetworkPolicy(o, "", nil)
		add("CiliumClusterwideNetworkPolicy", "", o.Name, specs, err)
	}
	for _, o := range w.ClusterNetworkPolicies {
		specs, err := parse.ClusterNetworkPolicy(o, "", nil)
		add("ClusterNetworkPolicy", "", o.Name, specs, err)
	}
	for _, o := range w.CIDRGroups {
		group, err := parse.CIDRGroup(o, "")
		put(a, txn, a.policies.Groups, group, err)
	}
}

// check compares what the maps say of a probe with the reference.
func (a *agent) check(w *reference.World, k *maps.Writer, p reference.Probe) (checked int, bad string) {
	for _, end := range []struct {
		dir       policy.Direction
		own, peer netip.Addr
		want      reference.Verdict
	}{{policy.Egress, p.Src, p.Dst, w.Egress(p)}, {policy.Ingress, p.Dst, p.Src, w.Ingress(p)}} {
		slot, ours := a.slots[end.own]
		if !ours {
			continue
		}
		allows, known := scene.Ask(a.TB, engine.DatapathOf(k), slot, end.dir, end.peer, p.Proto, p.Port)
		if !known {
			continue
		}
		checked++
		if allows != end.want.Allowed {
			return checked, end.dir.String() + ": the maps allow it, or not, against " + end.want.Why
		}
	}
	return checked, ""
}

// differential is a kernel that random worlds are compared with.
type differential struct {
	*program
	kernel     *maps.Writer
	verdicts   int // that the maps were asked for
	cases      int // that the program was asked about
	mismatches int
}

func newDifferential(t testing.TB) *differential {
	k := engine.NewTestKernel(t)
	enter(t)
	return &differential{program: newProgram(t, k), kernel: k}
}

// world compares what maps and program say of one world with the reference.
func (d *differential) world(seed uint64, probes int) {
	d.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w := random.World(r, 4)
	a := newAgent(d.TB, w, d.kernel)
	d.place(a.slots)
	for _, p := range random.Probes(r, w, probes) {
		n, bad := a.check(w, d.kernel, p)
		d.verdicts += n
		d.cases++
		if bad += d.program.check(w, a.slots, p); bad != "" {
			text, _ := random.Text(w, p)
			d.Errorf("seed %d: %+v: %s\n%s", seed, p, bad, text)
			d.mismatches++
		}
		if d.mismatches > 10 {
			d.FailNow()
		}
	}
}

// The maps, and the loaded program with them, say what the reference says of
// random worlds: 100,000 packets are sent.
func TestDifferential(t *testing.T) {
	d := newDifferential(t)
	worlds, wanted := uint64(2600), 100_000
	if testing.Short() {
		worlds, wanted = 100, 4000
	}
	for seed := range worlds {
		d.world(seed, 40)
	}
	t.Logf("%d verdicts of the maps; %d packets, of which %d were denied", d.verdicts, d.cases, d.denied)
	if d.cases < wanted || d.denied < d.cases/10 || d.denied > d.cases*9/10 {
		t.Errorf("%d packets were sent, of which %d were denied: want %d, and not nearly all alike", d.cases, d.denied,
			wanted)
	}
	if testing.Short() || os.Getenv("MYELIN_RECORD") != "1" {
		return
	}
	if err := results.Record(filepath.Join("..", "..", "bench", "results.json"), []results.Result{
		{Name: "policy/differential_cases", Value: float64(d.cases), Unit: "packets"},
		{Name: "policy/differential_mismatches", Value: float64(d.mismatches), Unit: "packets"},
	}); err != nil {
		t.Error(err)
	}
}

// FuzzDifferential is for more worlds.
func FuzzDifferential(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(1_000_000 + seed)
	}
	k := engine.NewTestKernel(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		enter(t)
		d := &differential{program: newProgram(t, k), kernel: k}
		d.world(seed, 40)
	})
}
