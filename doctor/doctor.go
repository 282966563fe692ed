// Package doctor examines a machine for what keeps Myelin from working, or from
// working well: the kernel, mounts, devices, kernel parameters, and other
// programs that want the same packets. It changes nothing that lasts.
package doctor

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"myelin/bpf/hooks"
	"myelin/config"
	"myelin/doctor/check"
	"myelin/status"
)

// Options of Examine.
type Options struct {
	// Config is the node's configuration, or the default.
	Config *config.Config
	// Proc and Sys are the directories /proc and /sys but in tests.
	Proc, Sys string
	// Agent is the report of the node's agent, nil where none answers;
	// AgentError says why.
	Agent      *status.Report
	AgentError error
	// Checks are those of features.
	Checks []check.Check
}

// Examine runs every check in the network namespace of the process, in the
// order of the areas. A check that can't look says so as a finding.
func Examine(o Options) []check.Finding {
	checks := ordered(slices.Concat(o.machineChecks(), o.Checks))
	m := &check.Machine{
		Config: o.Config, Proc: o.Proc, Sys: o.Sys, Agent: o.Agent != nil, TCX: o.attachesByTCX, Area: "devices",
	}
	handle, err := netlink.NewHandle()
	if err != nil {
		m.Fail("netlink can't be opened: "+err.Error(), "nothing about devices can be told",
			"run in the node's network namespace, as root")
	} else {
		defer handle.Close()
		m.Netlink = handle
		o.readLinks(m)
	}
	lacking, _ := lackingCapabilities(m) // the check of the kernel reports an error
	for _, c := range checks {
		if c.Devices && m.Netlink == nil || c.Privileged && len(lacking) > 0 {
			continue
		}
		m.Area = c.Area
		c.Run(m)
	}
	return m.Findings
}

// machineChecks are those that no feature brings.
func (o *Options) machineChecks() []check.Check {
	return []check.Check{
		{Area: "agent", Run: o.agent},
		{Area: "kernel", Run: func(m *check.Machine) {
			kernel(m, notExamined(slices.Concat(o.machineChecks(), o.Checks)))
		}},
		{Area: "mounts", Run: mounts},
		{Area: "netfilter", Devices: true, Privileged: true, Run: netfilter},
		{Area: "cni", Devices: true, Run: otherNetworks},
		{Area: "clock", Run: clock},
	}
}

// areas is the order of areas; those that are not listed come last.
func areas() []string {
	return strings.Fields("agent kernel bpf mounts devices mtu sysctls programs netfilter cni clock tune")
}

// ordered sorts checks by area.
func ordered(checks []check.Check) []check.Check {
	rank := func(c check.Check) int {
		if i := slices.Index(areas(), c.Area); i >= 0 {
			return i
		}
		return len(areas())
	}
	slices.SortStableFunc(checks, func(a, b check.Check) int { return rank(a) - rank(b) })
	return checks
}

// notExamined names the areas of which some check needs capabilities.
func notExamined(checks []check.Check) string {
	var list []string
	for _, c := range ordered(checks) {
		if c.Privileged && !slices.Contains(list, c.Area) {
			list = append(list, c.Area)
		}
	}
	return strings.Join(list, ", ")
}

// Worst is the worst level among the findings.
func Worst(findings []check.Finding) check.Level {
	rank := map[check.Level]int{check.Info: 1, check.Warn: 2, check.Fail: 3}
	worst := check.OK
	for _, f := range findings {
		if rank[f.Level] > rank[worst] {
			worst = f.Level
		}
	}
	return worst
}

// agent turns what the agent reports into findings.
func (o *Options) agent(m *check.Machine) {
	if o.Agent == nil {
		text := "no agent answers"
		if o.AgentError != nil {
			text += ": " + o.AgentError.Error()
		}
		m.Info(text, "only the machine is examined, against the configuration that the agent would have",
			"start it, or name its socket with --socket")
		return
	}
	good := 0
	for _, f := range o.Agent.Features {
		text := f.Name + ": " + f.Chosen
		if len(f.Problems) > 0 {
			text = f.Name + ": " + strings.Join(f.Problems, "; ")
		}
		switch f.State {
		case status.Broken:
			m.Fail(text, f.Cost, "see `myelin status --verbose`")
		case status.Fallback:
			m.Warn(text, f.Cost, "see `myelin status --verbose`")
		default:
			good++
		}
	}
	m.OK("the agent of %s answers: %d of %d features are as wanted", o.Agent.Node, good, len(o.Agent.Features))
}

// attachesByTCX asks the agent, or else the kernel.
func (o *Options) attachesByTCX() bool {
	if o.Agent != nil {
		f := o.Agent.Feature("Attach Mode")
		return f != nil && f.Chosen == "TCX"
	}
	return o.Config.BPF.EnableTCX && hooks.TCX() == nil
}
