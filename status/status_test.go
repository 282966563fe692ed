package status

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/ipam"
	"myelin/node"
	"myelin/route"
	"myelin/route/tunnel"
)

func begin() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// good is a node of two where all is as wanted.
func good(t *testing.T) Facts {
	c, err := config.Parse([]byte(`
ipv6: {enabled: true}
autoDirectNodeRoutes: true
myelin: {nodeName: node1, manifests: /m}
`), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cidr4, cidr6 := netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:10:0:1::/64")
	return Facts{
		Config: c, Version: "v0.1.0", Kernel: "6.12.1", Now: begin().Add(time.Minute), Began: begin(),
		Ready:    152 * time.Millisecond,
		Settings: bpf.Settings{Ipv4: 1, Ipv6: 1, Masquerade4: 1, Masquerade6: 1, Monitor: 1, EventRate: 10000, Hz: 250},
		Attach:   bpf.TCX, PodLinks: "veth",
		MTU: route.MTU{Wire: 1500, Pod: 1500, Why: "smallest of the wires, eth0"},
		Nodes: []*cluster.Node{
			{Name: "node1", PodCIDRs: []netip.Prefix{cidr4, cidr6}},
			{Name: "node2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}},
		},
		Counts: Counts{Nodes: 2, Namespaces: 1, Pods: 4, Endpoints: map[string]int{"ready": 2}},
		Wires: []*node.Wire{{Name: "eth0", IPv4: netip.MustParseAddr("192.168.9.1"),
			IPv6: netip.MustParseAddr("fd00:9::1")}},
		Routes: []*route.Route{{Prefix: netip.MustParsePrefix("10.0.2.0/24"), Owner: "node node2",
			Status: reconciler.StatusDone()}},
		NextHops: []*route.NextHop{{Device: "eth0", Address: netip.MustParseAddr("192.168.9.2"), For: "node node2",
			Managed: true, State: "reachable"}},
		Pools: []ipam.Usage{
			{Prefix: cidr4, Gateway: ipam.Gateway(cidr4), InUse: 2, Capacity: 253},
			{Prefix: cidr6, Gateway: ipam.Gateway(cidr6), InUse: 2, Capacity: math.MaxUint64},
		},
		Conflist: Conflist{Path: "/etc/cni/net.d/05-myelin.conflist"},
		Listeners: []Listener{
			{Name: "health", Address: "127.0.0.1:9879"}, {Name: "health", Address: "[::1]:9879",
				Error: "cannot assign requested address", Absent: true},
		},
		Devices: []Device{
			{Name: "eth0", Index: 2, Kind: "wire", Why: "IPv4 default route", Driver: "virtio_net", MTU: 1500, Up: true,
				Hooks: []string{"from_wire"}},
			{Name: "mye00000001", Index: 3, Kind: "pod", Driver: "veth", MTU: 1500, Up: true,
				Hooks: []string{"from_pod"}},
		},
		Maps: []*bpf.Usage{
			{Name: "events", Type: "RingBuf", Entries: -1, Max: 1 << 18, Bytes: 1 << 18, Note: "new"},
			{Name: "flows", Type: "LRUHash", Entries: 10, Max: 1000, Bytes: 3 << 20, Adopted: true},
		},
		Tables: []Table{{Name: "endpoints", Rows: 2, Done: 2}, {Name: "routes", Rows: 4, Done: 4}},
		Lines: []Feature{
			{Name: "Prefilter", State: Off, Chosen: "off", Wanted: "myelin.policy.prefilter: none",
				Why: "everybody may come in by a wire"},
			{
				Name: "Conntrack", State: Off, Chosen: "no table", Why: "no feature needs one",
				Wanted: "bpf.ctTcpMax, bpf.ctAnyMax, bpf.lbMapMax",
			},
		},
	}
}

// fallbacks is a node on an old kernel, with less than was wanted.
func fallbacks(t *testing.T) Facts {
	f := good(t)
	f.Attach, f.AttachWhy = bpf.Clsact, "the kernel has no TCX (6.6 or later): invalid argument"
	f.Config.BPF.DatapathMode = "auto"
	f.PodLinksWhy = "the kernel has no netkit (6.7 or later, CONFIG_NETKIT): invalid argument"
	f.Config.Warnings = config.Problems{{File: "test.yaml", Key: "policyEnforcementMode",
		Reason: "always has no effect: policies are not yet enforced"}}
	f.Unused = map[string]int{"v1/Service": 3}
	f.EventsLost = 12
	f.NextHops[0].Managed = false
	f.Wires[0].IPv6 = netip.Addr{}
	f.Pools[0].InUse = 240
	f.Maps[1] = &bpf.Usage{Name: "flows", Type: "LRUHash", Entries: 950, Max: 1000, Bytes: 3 << 20,
		Note: "its value has another size; its rows have another layout and are made anew"}
	f.Devices[0].Foreign = []string{"intruder (id 7) at tcx ingress"}
	return f
}

// broken is a node where much is wrong.
func broken(t *testing.T) Facts {
	f := good(t)
	f.Config.SocketLB.Enabled, f.Services.Why = true,
		"attach connect4 to cgroup /sys/fs/cgroup: operation not permitted"
	f.Config.RoutingMode, f.Config.BPF.HostLegacyRouting = "tunnel", true
	f.Settings.LegacyRouting, f.Settings.FlowAlways = 1, 1
	f.MTU.Overhead = 50
	f.MTUProblem = errors.New("MTU of pods is 1250: IPv6 needs at least 1280")
	f.Tunnel = &tunnel.Tunnel{Name: "myelin_vxlan",
		Status: reconciler.StatusError(errors.New("make device: no such type"))}
	f.Problems = []*cluster.Problem{{File: "pods.yaml", Object: "Pod default/a", Field: "metadata.name",
		Reason: "is wrong"}}
	f.RunDir = errors.New("directory /run/myelin can't be written: no space left on device")
	f.Listeners[0].Error = "listen tcp 127.0.0.1:9879: bind: address already in use"
	f.Conflist.Error, f.Conflist.Before = errors.New("open 05-myelin.conflist: no such file"), []string{"00-other.conf"}
	f.Pools = f.Pools[:1]
	f.Pools[0].InUse = 253
	f.Routes[0].Status = reconciler.StatusError(errors.New("set route 10.0.2.0/24: no such device"))
	f.NextHops[0].State = "failed"
	f.Maps[1] = &bpf.Usage{Name: "endpoints", Type: "Hash", Entries: 1000, Max: 1000}
	f.Devices[0].Up, f.Devices[0].Hooks, f.Devices[0].Missing = false, nil, []string{"from_wire"}
	f.Tables = []Table{
		{Name: "endpoints", Rows: 2, Done: 1, Failed: 1,
			Errors: []string{"attach from_pod to mye00000001: no such device"}},
		{Name: "routes", Rows: 9, Done: 4, Failed: 5, Errors: []string{"e1", "e2", "e3", "e4", "e5"}},
	}
	return f
}

// TestRender compares with testdata; "go test ./status -args update" writes it.
func TestRender(t *testing.T) {
	update := slices.Contains(flag.Args(), "update")
	for _, test := range []struct {
		name  string
		facts Facts
		style Style
	}{
		{"good", good(t), Style{Width: 100}},
		{"policies", policies(t), Style{Width: 100}},
		{"verbose", good(t), Style{Width: 100, Verbose: true}},
		{"services", services(t), Style{Width: 100, Verbose: true}},
		{"packets", packets(t), Style{Width: 100}},
		{"fallbacks", fallbacks(t), Style{Width: 100}},
		{"broken", broken(t), Style{Width: 100}},
		{"broken-narrow", broken(t), Style{Width: 60, Verbose: true}},
	} {
		var b strings.Builder
		if err := Explain(test.facts).Render(&b, test.style); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", test.name+".txt")
		if update {
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", test.name, b.String(), want)
		}
	}
}

// A verbose report never points to --verbose: what the compact one leaves out is in it.
func TestVerboseShowsTheRest(t *testing.T) {
	f := broken(t)
	f.Policies = policies(t).Policies
	f.Settings.Policy = 1
	f.Policies.Problems, f.Policies.Refused = []string{"p1", "p2", "p3", "p4 is refused"}, 4
	var compact, verbose strings.Builder
	r := Explain(f)
	err := errors.Join(r.Render(&compact, Style{Width: 100}), r.Render(&verbose, Style{Width: 100, Verbose: true}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want map[string]bool
	}{
		{compact.String(), map[string]bool{
			"e5": false, "p4 is refused": false, "and 1 more (--verbose)": true, "and 2 more (--verbose)": true,
		}},
		{verbose.String(), map[string]bool{
			"e5": true, "p4 is refused": true, "--verbose": false, "and 1 more (listed below)": true,
		}},
	} {
		for part, want := range c.want {
			if strings.Contains(c.text, part) != want {
				t.Errorf("%q is in it: %t, want %t\n%s", part, !want, want, c.text)
			}
		}
	}
}

// TestColor: without its colours, a coloured report is the plain one.
func TestColor(t *testing.T) {
	var plain, colored strings.Builder
	r := Explain(broken(t))
	if err := errors.Join(r.Render(&plain, Style{Width: 70, Verbose: true}),
		r.Render(&colored, Style{Width: 70, Verbose: true, Color: true})); err != nil {
		t.Fatal(err)
	}
	text := colored.String()
	for _, code := range []string{red, yellow, faint, bold, "0"} {
		text = strings.ReplaceAll(text, "\x1b["+code+"m", "")
	}
	if colored.Len() == plain.Len() || text != plain.String() {
		t.Errorf("without colour\n%s\nplain\n%s", text, plain.String())
	}
}

// TestStates: what is not as wanted says why, and a report is as bad as its
// worst feature.
func TestStates(t *testing.T) {
	for _, test := range []struct {
		facts Facts
		want  State
		least int // features in that state
	}{{good(t), OK, 21}, {fallbacks(t), Fallback, 10}, {broken(t), Broken, 12}} {
		r := Explain(test.facts)
		if r.State != test.want {
			t.Errorf("report is %s, want %s", r.State, test.want)
		}
		if n := len(r.in(test.want)); n < test.least {
			t.Errorf("%d features are %s, want %d: %q", n, test.want, test.least, r.in(test.want))
		}
		names := map[string]bool{}
		for _, f := range r.Features {
			if f.Chosen == "" || names[f.Name] {
				t.Errorf("%s: twice, or says not what was chosen", f.Name)
			}
			if (f.State == Broken || f.State == Fallback) != (len(f.Problems) > 0) {
				t.Errorf("%s is %s, with problems %q", f.Name, f.State, f.Problems)
			}
			names[f.Name] = true
		}
	}
}

// TestUnseen: before the agent has looked at a next hop, it is not known what keeps it resolved.
func TestUnseen(t *testing.T) {
	f := good(t)
	f.NextHops[0].Managed, f.NextHops[0].State = false, "none"
	x := Explain(f).Feature("Neighbours")
	if x.State != OK || x.Chosen != "1 next hop, 1 being resolved" {
		t.Errorf("got %+v", x)
	}
}

func TestStarting(t *testing.T) {
	f := good(t)
	f.Ready = 0
	if r := Explain(f); r.State != Broken || r.ReadyMs != 0 {
		t.Errorf("an agent that is not ready is %s", r.State)
	}
}

func TestJSON(t *testing.T) {
	want := Explain(fallbacks(t))
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &Report{}
	if err := json.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  []string
	}{
		{"a bb ccc", 8, []string{"a bb ccc"}},
		{"a bb ccc", 7, []string{"a bb", "ccc"}},
		{"a bb ccc", 4, []string{"a bb", "ccc"}},
		{"abcdefgh i", 3, []string{"abcdefgh", "i"}},
		{"äö ü\nx", 4, []string{"äö ü", "x"}},
		{"", 4, []string{""}},
	} {
		if got := Wrap(test.text, test.width); !slices.Equal(got, test.want) {
			t.Errorf("%q in %d columns: %q, want %q", test.text, test.width, got, test.want)
		}
	}
}
