// Package policytest makes an engine of policies over real tables and maps, fed
// by a directory of manifests, as a node has it.
package policytest

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/kube/manifests"
	l7 "myelin/l7/config"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/identity"
	"myelin/policy/maps"
)

// Node is what a node has of policies.
type Node struct {
	DB        *statedb.DB
	Cluster   cluster.Tables
	Policies  policy.Tables
	Endpoints statedb.RWTable[*endpoint.Endpoint]
	Engine    *engine.Engine
	Datapath  *bpf.Datapath
	// Stop ends the node, as an agent ends.
	Stop func()
}

// New reads a directory. What pods it has on the node are endpoints, from slot 2
// on in the order of their names, and their policies are in the kernel. All ends with the test.
func New(t testing.TB, dir, name string) *Node {
	t.Helper()
	return Open(t, dir, name, t.TempDir(), policy.Config{})
}

// Open is New with a directory for what outlives the node, and a configuration. Its Proxy says whether there is one,
// which takes everything.
func Open(t testing.TB, dir, name, run string, config policy.Config) *Node {
	t.Helper()
	n := &Node{DB: statedb.New(), Datapath: bpftest.LoadMaps(t, bpf.Settings{Policy: 1}, map[string]uint32{
		"peers": 1024, "peer_prefixes": 1024, "peer_classes": 8192, "verdicts": 16384, "policies": 256,
	})}
	log := slog.New(slog.DiscardHandler)
	var err1, err2, err3 error
	n.Cluster, err1 = cluster.NewTables(n.DB)
	n.Policies, err2 = policy.NewTables(n.DB)
	n.Endpoints, err3 = endpoint.NewTable(n.DB)
	check(t, err1, err2, err3)
	n.Policies.Proxy = config.Proxy
	last := policy.OpenLastGood(filepath.Join(run, "policy-last-good.json"), n.DB, n.Policies, log)
	source, err1 := manifests.New(manifests.Params{
		DB: n.DB, Tables: n.Cluster, Policies: n.Policies, LastGood: last, Dir: dir, Log: log, Now: time.Now,
	})
	ids, err2 := identity.New(identity.Params{DB: n.DB, Tables: n.Cluster, Node: name, File: run + "/identities.json",
		Log: log, Now: time.Now})
	check(t, err1, err2)
	n.Engine, err1 = engine.New(engine.Params{
		DB: n.DB, Cluster: n.Cluster, Policies: n.Policies, Identities: ids.Identities(), Addresses: ids.Addresses(),
		Endpoints: n.Endpoints,
		Node:      name, Config: config, Dir: run, Maps: maps.New(n.Datapath, &bpf.Epochs{Map: n.Datapath.Epochs},
			time.Now),
		Log: log, PodWait: 5 * time.Second, Proxy: proxyOf(config),
	})
	check(t, err1)
	n.Stop = start(t, source.Run, ids.Run, n.Engine.Run, last.Run)
	t.Cleanup(n.Stop)
	n.settle(t, name)
	return n
}

// willing is a proxy that takes everything.
type willing struct{}

func (willing) Apply(context.Context, *l7.Config) error { return nil }

func proxyOf(config policy.Config) engine.Proxy {
	if config.Proxy {
		return willing{}
	}
	return nil
}

func check(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// start runs parts until what it returns is called, which waits for them.
func start(t testing.TB, parts ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	return sync.OnceFunc(func() {
		cancel()
		for range parts {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// settle makes endpoints of the node's pods, and waits for their policies.
func (n *Node) settle(t testing.TB, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		ok, wait := n.Cluster.Pods.Initialized(n.DB.ReadTxn())
		if ok {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			t.Fatal("the manifests are not read")
		}
	}
	txn := n.DB.WriteTxn(n.Endpoints)
	slot := uint16(2)
	for p := range n.Cluster.Pods.All(txn) {
		if p.NodeName == name && p.OwnsAddresses() {
			e := &endpoint.Endpoint{ID: slot, ContainerID: p.Name, IfName: "eth0", Namespace: p.Namespace, Pod: p.Name,
				IPv4: p.IPv4(), IPv6: p.IPv6(), State: endpoint.StateReady}
			if _, _, err := n.Endpoints.Insert(txn, e); err != nil {
				t.Fatal(err)
			}
			slot++
		}
	}
	txn.Commit()
	for s := uint16(2); s < slot; s++ {
		check(t, n.Engine.WaitPod(ctx, s))
	}
	for n.Engine.LastRealised().IsZero() { // a node without pods
		if ctx.Err() != nil {
			t.Fatal("the node's policies are not realised")
		}
		time.Sleep(time.Millisecond)
	}
}
