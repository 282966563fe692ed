// Package feature is the type of a feature of the agent: the parts that a
// feature brings from its folder, and what all features of a node share.
package feature

import (
	"context"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/doctor/check"
)

// Feature is one entry of the agent's list of features. All parts but Name are
// optional. Counts, Status and Metrics are called only after every feature has
// started, from any goroutine.
type Feature struct {
	// Name is what the start of the agent reports while it runs Start.
	Name string

	// Tables creates the tables that sources or other features write. It is
	// called before any feature starts.
	Tables func() error
	// Start creates reconcilers, jobs and other tables. Features start in the order
	// of the list; a feature may use what those before it have set in Node.
	Start func(context.Context) error
	// Stop releases what Start has opened. It is called in the opposite order
	// after all jobs have ended, also if Start has failed or was not reached.
	Stop func() error

	// Settings sets the feature's constants of the programs before they are
	// loaded.
	Settings func(*bpf.Settings)
	// Entries is the number of entries by map, for maps of the feature's own.
	Entries func() map[string]uint32
	// XDP reports whether the feature has work for XDP on wires.
	XDP func() bool

	// Lists are tables that are made on request. It may be called before Start;
	// the lists are read only after every feature has started.
	Lists func() map[string]List
	// Refuse returns why this node does not have a table of the feature, nil
	// for any other table. The error has a gRPC status.
	Refuse func(table string) error
	// Counts counts the rows of reconciled tables.
	Counts func(statedb.ReadTxn) []TableCount
	// Status is the feature's lines of `myelin status`.
	Status func() []Status
	// Metrics writes the feature's metrics.
	Metrics func(Sink)

	// Commands show the feature's tables.
	Commands []Command
	// Checks are the feature's part of `myelin doctor`, which may run without an agent.
	Checks []check.Check

	// Rights are what the feature needs of a Kubernetes API server.
	Rights []Right
}

// Right is a rule of the agent's ClusterRole, or of its Role.
type Right struct {
	Group     string
	Resources []string
	Verbs     []string
	// Namespaced rights are those of a Role in the namespace of policies' Secrets.
	Namespaced bool
}

// Row is a row of a list.
type Row = statedb.TableWritable

// List is a table that is made on request.
type List struct {
	Header []string
	// Each calls yield for each row until it returns false.
	Each func(yield func(Row) bool) error
}
