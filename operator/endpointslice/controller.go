// Package endpointslice makes the EndpointSlices of Services that have a
// selector, as a controller of Kubernetes does where there is an API server.
package endpointslice

import (
	"context"
	"log/slog"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table"
)

// Params are what a Controller needs.
type Params struct {
	DB *statedb.DB
	// Tables are those of a source that initializes all of them at once, and
	// doesn't touch slices that it has not written.
	Tables cluster.Tables
	Log    *slog.Logger
}

// Controller keeps the slices that it makes equal to Services, Pods and Nodes.
type Controller struct {
	Params
	done func(statedb.WriteTxn) // nil once all slices are there

	// The rest belongs to Run.
	services  map[cluster.Key]*service
	selectors selectors
	pods      map[cluster.Key]*cluster.Pod // as services have them
	zones     map[string]string            // of all nodes, by name; may be empty
	foreign   map[cluster.Key]string       // the Service of a slice of another controller
}

// New registers the controller as an initializer of the slices: they count as
// initialized once it has made its own. Call it before the source begins to
// read, so that no reader sees them without.
func New(p Params) *Controller {
	txn := p.DB.WriteTxn(p.Tables.Slices)
	defer txn.Commit()
	return &Controller{
		Params: p, done: p.Tables.Slices.RegisterInitializer(txn, "endpointslice"),
		services: map[cluster.Key]*service{}, selectors: selectors{}, pods: map[cluster.Key]*cluster.Pod{},
		zones: map[string]string{}, foreign: map[cluster.Key]string{},
	}
}

// Run follows the cluster tables until ctx ends. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	f, err := c.Tables.Follow(c.DB)
	if err != nil {
		return err
	}
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		c.round(f, w)
		return nil
	})
}

// round brings the slices up to date.
func (c *Controller) round(f *cluster.Follower, w *table.Watch) {
	r := c.DB.ReadTxn()
	changes := f.Next(r)
	w.Add(changes.More[:]...)
	u := update{Controller: c, cluster: r, touched: map[cluster.Key]bool{}, fresh: map[string]bool{},
		moved: map[string]bool{}}
	for change := range changes.Services {
		u.service(change.Object, change.Deleted)
	}
	for change := range changes.Pods {
		u.pod(change.Object, change.Deleted)
	}
	u.populate()
	for change := range changes.Nodes {
		u.node(change.Object, change.Deleted)
	}
	u.moves()
	for change := range changes.Slices {
		u.slice(change.Object, change.Deleted)
	}
	// The source's own slices come with the rest.
	ready := c.done == nil || w.Initialized(r, c.Tables.Services, c.Tables.Pods, c.Tables.Nodes)
	if err := u.commit(ready); err != nil {
		c.Log.Error("some EndpointSlices are not made", "error", err)
	}
}
