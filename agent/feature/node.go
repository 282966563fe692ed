package feature

import (
	"context"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
)

// Node is what the features of a node share. Fields are set while the agent
// starts, by the feature that is named, and do not change afterwards.
type Node struct {
	Log    *slog.Logger
	Config *config.Config

	DB      *statedb.DB    // tables
	Group   job.Group      // tables; from table.Group
	Cluster cluster.Tables // tables
	// Outside are pods in no podCIDR of their Node.
	Outside statedb.Table[*cluster.Outside] // routes
	// Detours are other nodes that are reached by another WireGuard device.
	Detours statedb.RWTable[*cluster.Detour] // routes

	Datapath *bpf.Datapath // datapath
	Epochs   *bpf.Epochs   // datapath
	// Loaded is what the programs were loaded with.
	Loaded bpf.Settings // datapath
}

// Go runs a job until it returns or the agent stops, which ends its context.
func (n *Node) Go(name string, run func(context.Context) error) {
	n.Group.Add(job.OneShot(name, func(ctx context.Context, _ cell.Health) error { return run(ctx) }))
}
