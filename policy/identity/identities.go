package identity

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table"
	"myelin/internal/table/ledger"
)

// Params are what Identities need.
type Params struct {
	DB     *statedb.DB
	Tables cluster.Tables
	// Node is this node's name.
	Node string
	// ClusterName is what all pods have as their cluster; empty: nothing.
	ClusterName string
	// File keeps the numbers over a restart of the agent; empty: nothing does.
	File string
	Log  *slog.Logger
	// Now is the clock.
	Now func() time.Time
	// Grace is how long the number of a label set is kept that no pod has any
	// more. Zero means ten minutes.
	Grace time.Duration
}

// Identities keeps the tables "identities" and "identity-addresses".
type Identities struct {
	Params
	ids   statedb.RWTable[*Identity]
	addrs statedb.RWTable[*Address]
	done  []func(statedb.WriteTxn) // nil once the tables are initialized

	// The rest belongs to Run.
	next    uint32
	store   *ledger.Ledger[record]
	pods    map[cluster.Key]holding
	nodes   map[string][]netip.Addr
	claims  map[netip.Addr][]string // the nodes that have an address
	retired map[uint32]time.Time    // when an identity lost its last pod
}

// holding is what a pod has.
type holding struct {
	id    uint32
	addrs []netip.Addr
}

// New creates the tables, with the reserved identities and those of the state
// file in them. A state file that can't be used is logged and begun anew: then
// numbers change, and nothing else does. One that can't be written is an error,
// unless the disk is full.
func New(p Params) (*Identities, error) {
	if p.Grace == 0 {
		p.Grace = 10 * time.Minute
	}
	ids, addrs, err := newTables(p.DB)
	if err != nil {
		return nil, err
	}
	i := &Identities{
		Params: p, ids: ids, addrs: addrs, next: First, store: &ledger.Ledger[record]{Path: p.File},
		pods: map[cluster.Key]holding{}, nodes: map[string][]netip.Addr{},
		claims: map[netip.Addr][]string{}, retired: map[uint32]time.Time{},
	}
	before := newKnown()
	next, err := i.store.Read(First, before.add)
	if err != nil {
		p.Log.Warn("identities get new numbers", "error", err)
		before = newKnown()
	}
	i.next = max(i.next, next)
	known := before.rows
	full, err := i.store.Start(i.next, records(known))
	if err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	if full != nil {
		p.Log.Warn("new identities can't be kept", "error", full)
	}
	txn := p.DB.WriteTxn(ids, addrs)
	defer txn.Abort()
	for id, name := range reservedNames() {
		known = append(known, &Identity{ID: uint32(id), Labels: []string{"reserved:" + name}})
	}
	for _, row := range known {
		if _, _, err := ids.Insert(txn, row); err != nil {
			return nil, fmt.Errorf("insert identity %d: %w", row.ID, err)
		}
		if row.ID >= First {
			i.retired[row.ID] = p.Now()
		}
	}
	i.done = append(i.done, ids.RegisterInitializer(txn, "cluster"), addrs.RegisterInitializer(txn, "cluster"))
	txn.Commit()
	return i, nil
}

// Identities is the table of numbers.
func (i *Identities) Identities() statedb.Table[*Identity] { return i.ids }

// Addresses is the table of addresses of the cluster.
func (i *Identities) Addresses() statedb.Table[*Address] { return i.addrs }

// Pod is the identity of a pod, also before it has an address. It is false
// while the pod isn't known or isn't numbered yet.
func (i *Identities) Pod(txn statedb.ReadTxn, namespace, name string) (*Identity, bool) {
	pod, _, ok := i.Tables.Pods.Get(txn, cluster.PodByKey(namespace, name))
	if !ok {
		return nil, false
	}
	if pod.HostNetwork {
		row, _, ok := i.ids.Get(txn, ByID(i.ofNode(pod.NodeName)))
		return row, ok
	}
	ns, _, _ := i.Tables.Namespaces.Get(txn, cluster.NamespaceByName(namespace))
	row, _, ok := i.ids.Get(txn, byLabels(Labels(pod, ns, i.ClusterName)))
	return row, ok
}

func (i *Identities) ofNode(name string) uint32 {
	if name == i.Node {
		return Host
	}
	return RemoteNode
}

// Run follows the cluster tables until ctx ends. It must be called once.
func (i *Identities) Run(ctx context.Context) error {
	txn := i.DB.WriteTxn(i.Tables.Pods, i.Tables.Namespaces, i.Tables.Nodes)
	pods, err1 := i.Tables.Pods.Changes(txn)
	spaces, err2 := i.Tables.Namespaces.Changes(txn)
	nodes, err3 := i.Tables.Nodes.Changes(txn)
	txn.Commit()
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return fmt.Errorf("follow the cluster tables: %w", err)
		}
	}
	defer i.store.Close()
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		r := i.DB.ReadTxn()
		podChanges, morePods := pods.Next(r)
		spaceChanges, moreSpaces := spaces.Next(r)
		nodeChanges, moreNodes := nodes.Next(r)
		u := i.begin(r)
		for c := range nodeChanges {
			u.node(c.Object, c.Deleted)
		}
		for c := range podChanges {
			u.pod(c.Object.Key())
		}
		for c := range spaceChanges {
			for p := range cluster.PodsByNamespace(i.Tables.Pods, r, c.Object.Name) {
				u.pod(p.Key())
			}
		}
		u.commit(i.done == nil || w.Initialized(r, i.Tables.Pods, i.Tables.Namespaces, i.Tables.Nodes))
		w.Add(morePods, moreSpaces, moreNodes)
		w.After(max(i.Grace/10, time.Millisecond)) // unused numbers are released by time
		return nil
	})
}
