// Package control is how the agent talks to the proxy: HTTP and JSON over a unix socket, and a socket that hands out
// the proxy's network namespace.
package control

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"myelin/l7/config"
	"myelin/l7/dns"
	"myelin/l7/httpproxy"
)

// Dir is the proxy's directory in the agent's run directory.
func Dir(runDir string) string { return filepath.Join(runDir, "proxy") }

// Socket is the path of the control socket.
func Socket(runDir string) string { return filepath.Join(Dir(runDir), "proxy.sock") }

// DrainSocket is the path of a socket by which a proxy is found that has handed over, and was started at a time.
func DrainSocket(runDir string, started time.Time) string {
	return filepath.Join(Dir(runDir), fmt.Sprintf("draining-%d.sock", started.UnixNano()))
}

// drainSockets are the paths of all that there are, in use or not.
func drainSockets(runDir string) []string {
	paths, _ := filepath.Glob(filepath.Join(Dir(runDir), "draining-*.sock")) // the pattern is right
	return paths
}

// NamespaceSocket is the path of the socket that hands out the network namespace.
func NamespaceSocket(runDir string) string { return filepath.Join(Dir(runDir), "netns.sock") }

// ConfigFile is the last configuration, which a proxy starts with.
func ConfigFile(runDir string) string { return filepath.Join(Dir(runDir), "config.json") }

// NamesFile has the names that are known, which a proxy starts with.
func NamesFile(runDir string) string { return filepath.Join(Dir(runDir), "names.journal") }

// Status is what the proxy says of itself.
type Status struct {
	// PID is that of its own PID namespace: a container's process has another one elsewhere. See Process.
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// Pod is the pod that the proxy runs in, as "namespace/name"; empty: it is a process of the node or of the agent's
	// container.
	Pod     string    `json:"pod,omitempty"`
	Started time.Time `json:"started"`
	// Device is the name of the TUN device that DNS messages pass through.
	Device string `json:"device"`
	// Connections are those that are served now; Accepted all since the start.
	Connections int    `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	// Requests are HTTP requests and TLS connections, by what the rules have said.
	Requests map[string]uint64 `json:"requests"`
	DNS      dns.Counters      `json:"dns"`
	// Names and Addresses are how many names, and pairs of a name and an address, are known.
	Names     int `json:"names"`
	Addresses int `json:"addresses"`
	// Questions are those whose messages pass in the datapath, and Passed how many queries did since the start.
	Questions int    `json:"questions"`
	Passed    uint64 `json:"passed"`
	// Lost are records that no agent has read in time.
	Lost uint64 `json:"lost"`
	// Problems say what does not work.
	Problems []string `json:"problems,omitempty"`
}

// Same reports whether both are of one process. The PID alone does not tell: in containers it is always 1.
func (s *Status) Same(other *Status) bool {
	return s.PID == other.PID && s.Started.Equal(other.Started)
}

// Record is a flow record of layer 7: exactly one of HTTP and DNS is set.
type Record struct {
	// Seq counts records since the proxy started.
	Seq  uint64            `json:"seq"`
	Flow Flow              `json:"flow"`
	HTTP *httpproxy.Record `json:"http,omitempty"`
	DNS  *dns.Record       `json:"dns,omitempty"`
}

// Records are records that follow each other.
type Records struct {
	List []Record `json:"list"`
	// Next is the Seq to read on from, and Lost how many were overwritten before the first one of List.
	Next uint64 `json:"next"`
	Lost uint64 `json:"lost"`
}

// Handler is the proxy as the agent sees it.
type Handler interface {
	// Configure replaces the configuration, which is in force when it returns.
	Configure(*config.Config) error
	Status() Status
	Names() []dns.Row
	// Records returns the records from a Seq on. Without any, it waits for one until the context ends.
	Records(ctx context.Context, from uint64) Records
	// Add adds records of the proxy that this one has taken over from.
	Add([]Record)
	// Drain hands new connections over to another proxy, which has started: it returns when this one accepts none any
	// more, and the process ends when its connections have.
	Drain()
}
