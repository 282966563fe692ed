// Package bench measures how fast packets travel between two nodes, as a ratio of the bare wire between them.
//
// Every Scenario builds its own two nodes, joined by one direct veth wire, and says from where to where netperf runs.
// Measure runs netperf over all of them in interleaved rounds. Numbers of one scenario mean little; its ratio to the
// scenario "node" in the same run is what is kept.
package bench

import (
	"context"
	"net/netip"
)

// Family is an IP version.
type Family int

// The families that a scenario can be built for.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// suffix marks the names of results that are not IPv4.
func (f Family) suffix() string {
	if f == IPv6 {
		return "6"
	}
	return ""
}

// Place is where a process runs.
type Place struct {
	// Netns is the name of its network namespace, as in /run/netns.
	Netns string
	// Cgroup is the directory of its control group; empty for that of this process.
	Cgroup string
}

// Path is where netperf runs.
type Path struct {
	Client, Server Place
	// ClientNode and ServerNode are the network namespaces of their nodes.
	ClientNode, ServerNode string
	// Target is the server's address as the client reaches it, Listen as the server has it.
	Target, Listen netip.Addr
	// Port is the one that data goes to, beside netserver's own for control; 0 for any.
	Port uint16
	// Control is netserver's port as the client reaches it; 0 for netserver's own.
	Control uint16
}

// Scenario is one way for a packet between two nodes.
type Scenario interface {
	// Name is the middle part of the names of its results, without the family's suffix: "node", "veth-flows".
	Name() string
	// Setup builds the path for the family and returns when packets pass.
	Setup(ctx context.Context, family Family) (Path, error)
	// Teardown removes everything that Setup made, also when Setup failed half way. It does nothing when Setup never
	// ran.
	Teardown(ctx context.Context) error
}
