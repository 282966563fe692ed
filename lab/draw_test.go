package lab

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func itoa(n int) string { return strconv.Itoa(n) }

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// drawing is a lab with a bit of everything.
func drawing() *Status {
	node := func(i int, pods ...PodStatus) NodeStatus {
		return NodeStatus{
			Name: fmt.Sprintf("node%d", i), Agent: "ready", Pods: pods,
			Addresses: addrs(fmt.Sprintf("192.168.64.%d", i), fmt.Sprintf("fd00:64::%d", i)),
			PodCIDRs: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i)),
				netip.MustParsePrefix(fmt.Sprintf("fd00:10:0:%d::/64", i)),
			},
		}
	}
	st := &Status{
		Name: "demo", Fabric: "bridge", MTU: 1500, Supervisor: "running",
		World: &WorldState{
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.64.254/24"),
				netip.MustParsePrefix("fd00:64::fffe/64")},
			Outside: addrs("198.51.100.1", "2001:db8:64::1"),
		},
		Nodes: []NodeStatus{
			node(1,
				PodStatus{Name: "demo/client1", Phase: "Running", Addresses: addrs("10.0.1.2", "fd00:10:0:1::2")},
				PodStatus{Name: "demo/server1", Phase: "Running", Addresses: addrs("10.0.1.3", "fd00:10:0:1::3"),
					Restarts: 2}),
			node(2,
				PodStatus{Name: "demo/image", Phase: "Pending", Addresses: addrs("10.0.2.2"),
					Message: "container web: image can't be pulled in the lab: give a command"},
				PodStatus{Name: "demo/old", Phase: "Running", Terminating: true, Addresses: addrs("10.0.2.3")},
				PodStatus{Name: "kube-system/host", Phase: "Running", HostNetwork: true,
					Addresses: addrs("192.168.64.2")}),
			node(3),
		},
		Unassigned: []string{"demo/nowhere"},
	}
	st.Nodes[2].Agent, st.Nodes[2].Reason = "starting", "no CNI configuration in "+
		"/run/myelin-lab/demo/nodes/node3/cni/net.d"
	return st
}

// TestDraw compares drawings at several widths with testdata; `go test ./lab -run Draw -args update` writes them.
func TestDraw(t *testing.T) {
	t.Parallel()
	wire := drawing()
	wire.Fabric, wire.World, wire.Nodes, wire.Unassigned, wire.Supervisor = "wire", nil, wire.Nodes[:2], nil,
		"not running"
	for name, c := range map[string]struct {
		st    *Status
		width int
	}{
		"wide":   {drawing(), 160},
		"medium": {drawing(), 100},
		"narrow": {drawing(), 44},
		"tiny":   {drawing(), 10},
		"wire":   {wire, 100},
	} {
		var b strings.Builder
		if err := c.st.Draw(&b, c.width); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if w := utf8.RuneCountInString(strings.TrimSpace(line)); w > max(c.width, narrowest) {
				t.Errorf("%s: a line of %d columns: %s", name, w, line)
			}
		}
		file := "testdata/draw-" + name + ".txt"
		if flag.Arg(0) == "update" {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, b.String(), want)
		}
	}
}
