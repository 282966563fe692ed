package cluster

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
)

// Follower reads what changes among Services, EndpointSlices, Pods and Nodes.
type Follower struct {
	services statedb.ChangeIterator[*Service]
	slices   statedb.ChangeIterator[*EndpointSlice]
	pods     statedb.ChangeIterator[*Pod]
	nodes    statedb.ChangeIterator[*Node]
}

// Changes are those since the last ones. More has a channel for each table,
// which closes when there are others.
type Changes struct {
	Services iter.Seq2[statedb.Change[*Service], statedb.Revision]
	Slices   iter.Seq2[statedb.Change[*EndpointSlice], statedb.Revision]
	Pods     iter.Seq2[statedb.Change[*Pod], statedb.Revision]
	Nodes    iter.Seq2[statedb.Change[*Node], statedb.Revision]
	More     [4]<-chan struct{}
}

// Follow begins with all that is there.
func (t Tables) Follow(db *statedb.DB) (*Follower, error) {
	txn := db.WriteTxn(t.Services, t.Slices, t.Pods, t.Nodes)
	defer txn.Commit()
	var f Follower
	var errs [4]error
	f.services, errs[0] = t.Services.Changes(txn)
	f.slices, errs[1] = t.Slices.Changes(txn)
	f.pods, errs[2] = t.Pods.Changes(txn)
	f.nodes, errs[3] = t.Nodes.Changes(txn)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("follow the cluster tables: %w", err)
	}
	return &f, nil
}

// Next reads the changes up to txn.
func (f *Follower) Next(txn statedb.ReadTxn) (c Changes) {
	c.Services, c.More[0] = f.services.Next(txn)
	c.Slices, c.More[1] = f.slices.Next(txn)
	c.Pods, c.More[2] = f.pods.Next(txn)
	c.Nodes, c.More[3] = f.nodes.Next(txn)
	return c
}
