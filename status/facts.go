package status

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/endpoint"
	"myelin/ipam"
	"myelin/node"
	"myelin/route"
	"myelin/route/tunnel"
)

// Facts are all that a report is made of: what the agent's parts know, read at
// one time.
type Facts struct {
	Config  *config.Config
	Version string
	Kernel  string // as uname(2) says
	Now     time.Time
	Began   time.Time
	Ready   time.Duration // from Began, 0 until then
	// Waiting is what the start is at; of no interest when the agent is ready.
	Waiting *Waiting
	// Reloads counts how often the agent has loaded its programs anew since its
	// process began, ReloadWhy says why it did last, at ReloadAt.
	Reloads   int
	ReloadWhy string
	ReloadAt  time.Time

	// Settings are what the programs were loaded with.
	Settings bpf.Settings
	// Attach is how programs hang on devices, AttachWhy why it is not the best
	// way.
	Attach    bpf.Mode
	AttachWhy string
	// XDP is how it is on each wire that it could be on.
	XDP map[string]bpf.XDPState
	// PodLinks is the kind of new pods' links. PodLinksWhy says why it is not what was configured.
	PodLinks, PodLinksWhy string
	// EventsLost counts events that no reader could be told, since the maps
	// were made.
	EventsLost uint64

	MTU        route.MTU
	MTUProblem error

	Nodes    []*cluster.Node
	Counts   Counts
	Problems []*cluster.Problem
	Unused   map[string]int // objects by kind that are not acted on
	Server   *APIServer     // nil: objects don't come from one

	// Services mean nothing where neither sockets nor packets get them.
	Services Services
	// Policies mean nothing where they are not enforced.
	Policies Policies

	Wires    []*node.Wire
	Routes   []*route.Route
	NextHops []*route.NextHop
	Tunnel   *tunnel.Tunnel // nil: none is wanted
	Pools    []ipam.Usage
	// PodCIDRs are what is in force, Outside the addresses of pods in none of it.
	PodCIDRs *ipam.Assignment
	Outside  []netip.Addr
	Conflist Conflist
	// RunDir is why the run directory can't be written, nil if it can.
	RunDir error
	// Listeners are the addresses of health and metrics.
	Listeners []Listener
	// Strays are pod links that no endpoint stands for.
	Strays []endpoint.Stray

	Devices []Device
	Maps    []*bpf.Usage
	Tables  []Table

	// Lines are those that features write themselves; not used before Ready.
	Lines []Feature
}

// Counts are sizes of tables.
type Counts struct {
	Nodes, Namespaces, Pods int
	// Endpoints by state.
	Endpoints map[string]int
}

// Conflist is the state of the CNI directory.
type Conflist struct {
	Path  string // of our file
	Error error  // why it is not there
	// Before are files that the runtime takes instead of ours: the first by
	// name counts.
	Before []string
}

// Listener is an address on which the agent serves HTTP.
type Listener struct {
	Name    string // "health" or "prometheus"
	Address string
	Error   string // why nothing listens there; empty: it does
	Absent  bool   // since the node has no such address
}

// Explain makes the report. It is a pure function.
func Explain(f Facts) *Report {
	r := &Report{
		Node: f.Config.Myelin.NodeName, Version: f.Version, Kernel: f.Kernel, Time: f.Now, Began: f.Began,
		ReadyMs: float64(f.Ready.Microseconds()) / 1000, State: OK,
		Devices: f.Devices, Maps: f.Maps, Tables: f.Tables, Strays: f.Strays, ServiceProblems: f.Services.Problems,
		PolicyProblems: slices.Concat(f.Policies.Failed, f.Policies.Problems),
		Settings:       f.Config.Explain(),
	}
	if f.Ready == 0 {
		r.Waiting = f.Waiting
	}
	for _, u := range f.Pools {
		r.Pools = append(r.Pools, Pool{Prefix: u.Prefix.String(), Gateway: u.Gateway.String(), InUse: u.InUse,
			Capacity: u.Capacity})
	}
	for _, explain := range f.features() {
		r.Features = append(r.Features, explain(&f))
	}
	if f.Ready != 0 {
		r.Features = append(r.Features, f.Lines...)
	}
	slices.SortStableFunc(r.Features, func(a, b Feature) int { return cmp.Compare(position(a.Name), position(b.Name)) })
	for _, x := range r.Features {
		r.State = r.State.Worse(x.State)
	}
	return r
}

// order has the names of the lines of a report. Lines that it does not name
// come last, in the order of the agent's features.
func order() []string {
	return []string{
		"Myelin", "Configuration", "Kubernetes", "CNI Config file", "Run directory", "Health and metrics", "IPAM",
		"IPv4", "IPv6", "Routing", "Direct Node Routes", "Attach Mode", "Device Mode", "Devices", "MTU",
		"Masquerading", "Encryption", "BandwidthManager", "IPv4 BIG TCP", "IPv6 BIG TCP", "Flow Tracking",
		"Conntrack", "Neighbours", "Services (socket)", "Services (packet)",
		"Service Statistics", "XDP", "Policies", "Prefilter", "Bind Protection", "Socket Termination",
		"Health Check Ports", "NodeMonitor", "Hubble", "Hubble exporters",
		"Clock Source for BPF", "BPF Maps", "Endpoints", "Controller Status",
	}
}

func position(name string) int {
	if i := slices.Index(order(), name); i >= 0 {
		return i
	}
	return len(order())
}

// features are the lines that need more than one feature knows. While the
// agent starts there are only those that need no other part of it.
func (f *Facts) features() []func(*Facts) Feature {
	early := []func(*Facts) Feature{
		(*Facts).agent, (*Facts).configuration, (*Facts).cluster, (*Facts).cni, (*Facts).runDir, (*Facts).listeners,
	}
	if f.Ready == 0 {
		return early
	}
	return append(early, []func(*Facts) Feature{
		(*Facts).ipam,
		(*Facts).ipv4, (*Facts).ipv6, (*Facts).routing, (*Facts).directRoutes, (*Facts).attachMode, (*Facts).deviceMode,
		(*Facts).devices, (*Facts).mtu, (*Facts).masquerading, (*Facts).flowTracking, (*Facts).neighbours,
		(*Facts).services, (*Facts).packets, (*Facts).acceleration, (*Facts).policies,
		(*Facts).bindProtection, (*Facts).socketTermination, (*Facts).healthCheckPorts,
		(*Facts).events, (*Facts).clock, (*Facts).maps, (*Facts).endpoints, (*Facts).reconcilers,
	}...)
}
