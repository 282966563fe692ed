// Package check is the type of the checks of `myelin doctor`: features bring
// theirs, and package doctor runs all of them.
package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"myelin/config"
)

// Level is how bad a finding is.
type Level string

// The levels, best first.
const (
	OK   Level = "OK"
	Info Level = "INFO" // good to know
	Warn Level = "WARN" // works, but slower, less safe or not for long
	Fail Level = "FAIL" // does not work
)

// Finding is what one check found.
type Finding struct {
	Area  string `json:"area"`
	Level Level  `json:"level"`
	What  string `json:"what"`
	Why   string `json:"why,omitempty"` // why it matters; empty for OK
	Do    string `json:"do,omitempty"`  // what to do about it
}

// Check examines one property of a machine. It changes nothing that lasts.
type Check struct {
	// Area groups findings; the order of areas is doctor's.
	Area string
	// Devices checks need netlink.
	Devices bool
	// Privileged checks find nothing but their own lack of capabilities without root.
	Privileged bool
	Run        func(*Machine)
}

// Machine is the machine under examination, and takes the findings.
type Machine struct {
	// Config is the configuration of the node's agent, or the one that it would have.
	Config *config.Config
	// Proc and Sys are the directories /proc and /sys but in tests.
	Proc, Sys string
	// Agent is true if an agent runs on the node.
	Agent bool
	// TCX is true if the agent's programs are attached by TCX, or would be.
	TCX func() bool

	// Netlink is in the namespace of the node. It is nil for checks without Devices,
	// as are the links.
	Netlink *netlink.Handle
	// Links are all devices; Pods are the host sides of pod links, Wires the devices that lead to other nodes, and
	// Hooked what the datapath's programs are attached to, which has the tunnel device, too.
	Links, Pods, Wires, Hooked []netlink.Link

	Area     string // of the check that runs
	Findings []Finding
}

// Add adds a finding.
func (m *Machine) Add(l Level, what, why, do string) {
	m.Findings = append(m.Findings, Finding{Area: m.Area, Level: l, What: what, Why: why, Do: do})
}

// OK adds what is as it should be.
func (m *Machine) OK(format string, args ...any) { m.Add(OK, fmt.Sprintf(format, args...), "", "") }

// Info adds what is good to know.
func (m *Machine) Info(what, why, do string) { m.Add(Info, what, why, do) }

// Warn adds what works, but not well.
func (m *Machine) Warn(what, why, do string) { m.Add(Warn, what, why, do) }

// Fail adds what does not work.
func (m *Machine) Fail(what, why, do string) { m.Add(Fail, what, why, do) }

// Sysctl reads a kernel parameter by its path below /proc/sys; ok is false where
// there is none, as for those that only the machine's own namespace has.
func (m *Machine) Sysctl(name string) (value string, ok bool) {
	data, err := os.ReadFile(filepath.Join(m.Proc, "sys", name))
	return strings.TrimSpace(string(data)), err == nil
}

// CleanupCilium is what to do about what Cilium has left on a node.
const CleanupCilium = "myelin cleanup --cilium, when its agent and its pods have ended on this node"
