// Package doctor examines a machine for what keeps Myelin from working, or from
// working well: the kernel, mounts, devices, kernel parameters, and other
// programs that want the same packets. It changes nothing that lasts.
package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"myelin/config"
	"myelin/status"
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
}

// Examine runs every check in the network namespace of the process, in the
// order of the areas. A check that can't look says so as a finding.
func Examine(o Options) []Finding {
	x := &examination{Options: o}
	handle, err := netlink.NewHandle()
	if err != nil {
		x.area = "devices"
		x.fail("netlink can't be opened: "+err.Error(), "nothing about devices can be told",
			"run in the node's network namespace, as root")
	} else {
		defer handle.Close()
		x.netlink = handle
		x.readLinks()
	}
	lacking, _ := x.lackingCapabilities() // the check of the kernel reports an error
	for _, c := range checks() {
		if c.devices && x.netlink == nil || c.privileged && len(lacking) > 0 {
			continue
		}
		x.area = c.area
		c.run(x)
	}
	return x.findings
}

type check struct {
	area    string
	devices bool // needs netlink
	// privileged checks find nothing but their own lack of capabilities without root.
	privileged bool
	run        func(*examination)
}

func checks() []check {
	return []check{
		{"agent", false, false, (*examination).agent},
		{"kernel", false, false, (*examination).kernel},
		{"bpf", false, true, (*examination).bpf},
		{"bpf", false, true, (*examination).datapath},
		{"mounts", false, false, (*examination).mounts},
		{"devices", true, true, (*examination).kinds},
		{"devices", true, false, (*examination).wires},
		{"mtu", true, false, (*examination).mtu},
		{"mtu", true, false, (*examination).routeMTU},
		{"sysctls", true, false, (*examination).sysctls},
		{"programs", true, true, (*examination).programs},
		{"programs", false, true, (*examination).sockets},
		{"netfilter", true, true, (*examination).netfilter},
		{"cni", false, false, (*examination).cni},
		{"cni", true, false, (*examination).otherNetworks},
		{"clock", false, false, (*examination).clock},
	}
}

// notExamined names the areas of which some check needs capabilities.
func notExamined() string {
	var areas []string
	for _, c := range checks() {
		if c.privileged && !slices.Contains(areas, c.area) {
			areas = append(areas, c.area)
		}
	}
	return strings.Join(areas, ", ")
}

// examination is the state of one run.
type examination struct {
	Options
	netlink  *netlink.Handle
	links    []netlink.Link
	defaults map[int]bool // indexes of links with a default route
	area     string
	findings []Finding
}

func (x *examination) add(l Level, what, why, do string) {
	x.findings = append(x.findings, Finding{Area: x.area, Level: l, What: what, Why: why, Do: do})
}

func (x *examination) ok(format string, args ...any) { x.add(OK, fmt.Sprintf(format, args...), "", "") }

func (x *examination) info(what, why, do string) { x.add(Info, what, why, do) }

func (x *examination) warn(what, why, do string) { x.add(Warn, what, why, do) }

func (x *examination) fail(what, why, do string) { x.add(Fail, what, why, do) }

// sysctl reads a kernel parameter by its path below /proc/sys; ok is false where
// there is none, as for those that only the machine's own namespace has.
func (x *examination) sysctl(name string) (value string, ok bool) {
	data, err := os.ReadFile(filepath.Join(x.Proc, "sys", name))
	return strings.TrimSpace(string(data)), err == nil
}

// Worst is the worst level among the findings.
func Worst(findings []Finding) Level {
	rank := map[Level]int{Info: 1, Warn: 2, Fail: 3}
	worst := OK
	for _, f := range findings {
		if rank[f.Level] > rank[worst] {
			worst = f.Level
		}
	}
	return worst
}

// agent turns what the agent reports into findings.
func (x *examination) agent() {
	if x.Agent == nil {
		text := "no agent answers"
		if x.AgentError != nil {
			text += ": " + x.AgentError.Error()
		}
		x.info(text, "only the machine is examined, against the configuration that the agent would have",
			"start it, or name its socket with --socket")
		return
	}
	good := 0
	for _, f := range x.Agent.Features {
		text := f.Name + ": " + f.Chosen
		if len(f.Problems) > 0 {
			text = f.Name + ": " + strings.Join(f.Problems, "; ")
		}
		switch f.State {
		case status.Broken:
			x.fail(text, f.Cost, "see `myelin status --verbose`")
		case status.Fallback:
			x.warn(text, f.Cost, "see `myelin status --verbose`")
		default:
			good++
		}
	}
	x.ok("the agent of %s answers: %d of %d features are as wanted", x.Agent.Node, good, len(x.Agent.Features))
}

func (x *examination) readLinks() {
	x.area = "devices"
	links, err := x.netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		x.fail("links can't be listed: "+err.Error(), "nothing about devices can be told", "run as root")
	}
	x.links, x.defaults = links, map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := x.netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
		if err != nil {
			continue
		}
		for _, r := range routes {
			x.defaults[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				x.defaults[hop.LinkIndex] = true
			}
		}
	}
	delete(x.defaults, 0)
}
