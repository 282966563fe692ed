// Package status says how a node's network is: for each feature what was
// wanted, what was chosen, why, and what a fallback costs; and what is broken.
package status

import (
	"time"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/config"
	"myelin/endpoint"
)

// State is the state of a feature.
type State = feature.State

// The states, best first.
const (
	OK       = feature.OK
	Off      = feature.Off
	Fallback = feature.Fallback
	Broken   = feature.Broken
)

// Feature is one line of a report.
type Feature = feature.Status

// Report is the status of one node.
type Report struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Kernel  string    `json:"kernel"`
	Time    time.Time `json:"time"`
	Began   time.Time `json:"began"`   // when the agent did
	ReadyMs float64   `json:"readyMs"` // from then to ready, in milliseconds; 0: not ready

	// Waiting is what the start is at, nil when the agent is ready.
	Waiting *Waiting `json:"waiting,omitempty"`

	State    State     `json:"state"` // the worst of the features
	Features []Feature `json:"features"`

	Devices []Device     `json:"devices"`
	Maps    []*bpf.Usage `json:"maps"`
	Tables  []Table      `json:"tables"`
	Pools   []Pool       `json:"pools"`
	// Strays are pod links that no endpoint stands for.
	Strays []endpoint.Stray `json:"strays,omitempty"`
	// ServiceProblems are what Services ask and don't get, at most feature.MaxErrors.
	ServiceProblems []string `json:"serviceProblems,omitempty"`
	// PolicyProblems are why policies are refused, or not in the kernel, at most
	// feature.MaxErrors of each.
	PolicyProblems []string `json:"policyProblems,omitempty"`
	// Settings are the whole configuration.
	Settings []config.Setting `json:"settings"`
}

// Feature returns the feature of a name, or nil.
func (r *Report) Feature(name string) *Feature {
	for i := range r.Features {
		if r.Features[i].Name == name {
			return &r.Features[i]
		}
	}
	return nil
}

// in returns the names of the features in a state.
func (r *Report) in(s State) (names []string) {
	for _, f := range r.Features {
		if f.State == s {
			names = append(names, f.Name)
		}
	}
	return names
}

// Waiting is what the start of an agent is at.
type Waiting struct {
	Part  string    `json:"part"`
	Since time.Time `json:"since"`
	// Reason is why the start can't go on by itself, empty if it can, and Help
	// what the administrator could do about it.
	Reason string `json:"reason,omitempty"`
	Help   string `json:"help,omitempty"`
}

// Device is an interface that matters to the datapath.
type Device struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Kind   string `json:"kind"` // wire, tunnel, pod or other
	Why    string `json:"why,omitempty"`
	Driver string `json:"driver,omitempty"`
	MTU    int    `json:"mtu"`
	Up     bool   `json:"up"`
	// Hooks are the programs of ours that the kernel runs there, Missing those
	// that it should, and Foreign those of others.
	Hooks   []string `json:"hooks,omitempty"`
	Missing []string `json:"missing,omitempty"`
	Foreign []string `json:"foreign,omitempty"`
}

// Table is a table of desired state and how much of it the kernel has.
type Table = feature.TableCount

// maxErrors limits the errors of one table in a report.
const maxErrors = feature.MaxErrors

// Pool is a podCIDR of the node.
type Pool struct {
	Prefix   string `json:"prefix"`
	Gateway  string `json:"gateway"`
	InUse    uint64 `json:"inUse"`
	Capacity uint64 `json:"capacity"`
}
