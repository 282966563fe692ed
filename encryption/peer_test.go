package encryption

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

func testKey(c string) string { return strings.Repeat(c, 42) + "A=" }

func node(name, key string, parts ...string) *cluster.Node {
	n := &cluster.Node{Name: name, WireGuardKey: key}
	for _, p := range parts {
		if a, err := netip.ParseAddr(p); err == nil {
			n.Addresses = append(n.Addresses, a)
		} else {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
		}
	}
	return n
}

func testInput() peerInput {
	return peerInput{
		node: "n1", keepalive: 25 * time.Second,
		device: &Device{Name: DeviceName, PublicKey: testKey("a"), Port: port, Index: 7},
		nodes: []*cluster.Node{
			node("n1", testKey("a"), "192.0.2.1", "10.0.1.0/24"),
			node("n2", testKey("b"), "192.0.2.2", "2001:db8::2", "10.0.2.0/24", "fd00:2::/64"),
			node("n3", "", "192.0.2.3", "10.0.3.0/24"),
		},
		outside: map[string][]netip.Prefix{"n2": {netip.MustParsePrefix("10.9.9.9/32")}},
	}
}

// TestUsable: peers are complete when each device that is to be there is known, and has programs.
func TestUsable(t *testing.T) {
	first := Device{Name: DeviceName, Wanted: true, Index: 7}
	second := Device{Name: RotationDevice, Wanted: true, Index: 8}
	made, gone := first, second
	made.Index, gone.Wanted = 0, false
	for name, test := range map[string]struct {
		devices  []Device
		attached bool
		with     int
		all      bool
	}{
		"no rows":        {},
		"first only":     {[]Device{first}, true, 1, false},
		"being made":     {[]Device{made, gone}, true, 0, false},
		"no rotation":    {[]Device{first, gone}, true, 1, true},
		"no programs":    {[]Device{first, second}, false, 0, false},
		"a rotation":     {[]Device{first, second}, true, 2, true},
		"not encryption": {[]Device{{Name: DeviceName}, gone}, true, 0, true},
	} {
		with, all := usable(func(yield func(*Device, statedb.Revision) bool) {
			for _, d := range test.devices {
				if !yield(&d, 0) {
					return
				}
			}
		}, func(int) bool { return test.attached })
		if len(with) != test.with || all != test.all {
			t.Errorf("%s: got %d devices, all %v; want %d, %v", name, len(with), all, test.with, test.all)
		}
	}
}

func TestDerivePeers(t *testing.T) {
	peers := derivePeers(testInput())
	if len(peers) != 1 {
		t.Fatalf("got %d peers, want n2 only", len(peers))
	}
	p := peers[0]
	if p.Node != "n2" || p.PublicKey != testKey("b") || p.Device != 7 || p.Keepalive != 25*time.Second ||
		p.Endpoint != netip.MustParseAddrPort("192.0.2.2:51871") || p.Problem != "" {
		t.Errorf("got %+v", p)
	}
	const want = "10.0.2.0/24,fd00:2::/64,10.9.9.9/32,192.0.2.2/32,2001:db8::2/128"
	if got := joinPrefixes(p.AllowedIPs); got != want {
		t.Errorf("allowed IPs %s, want %s", got, want)
	}
	c, err := p.config()
	if err != nil || c.PublicKey.String() != testKey("b") || len(c.AllowedIPs) != 5 ||
		c.AllowedIPs[1].String() != "fd00:2::/64" || c.Endpoint.String() != "192.0.2.2:51871" {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestDerivePeersRotation: while one of both nodes rotates its key, both devices have the other one as a peer, each
// with the keys of that device.
func TestDerivePeersRotation(t *testing.T) {
	beside := &Device{Name: RotationDevice, PublicKey: testKey("a"), Port: rotationPort, Index: 8}
	on := func(in peerInput, d *Device) (list []string) {
		in.device, in.keepalive = d, 0
		for _, p := range derivePeers(in) {
			list = append(list, fmt.Sprint(p.Node, " ", p.PublicKey[:1], " ", p.Endpoint.Port(), " ", p.Keepalive))
		}
		return list
	}
	for name, c := range map[string]struct {
		change        func(in *peerInput)
		usual, beside []string
	}{
		"none": {func(*peerInput) {}, []string{"n2 b 51871 0s"}, nil},
		"n2": {func(in *peerInput) { in.nodes[1].NextWireGuardKey = testKey("c") },
			[]string{"n2 b 51871 1s"}, []string{"n2 c 51872 1s"}},
		"n2 returns": {func(in *peerInput) { in.nodes[1].NextWireGuardKey = testKey("b") },
			[]string{"n2 b 51871 1s"}, []string{"n2 b 51872 1s"}},
		"this node, which does not begin sessions": {func(in *peerInput) { in.keys.next.public = testKey("d") },
			[]string{"n2 b 51871 0s"}, []string{"n2 b 51872 0s"}},
		"both": {func(in *peerInput) {
			in.keys.next.public, in.nodes[1].NextWireGuardKey = testKey("d"), testKey("c")
		}, []string{"n2 b 51871 1s"}, []string{"n2 c 51872 1s"}},
		"a node without a key": {func(in *peerInput) { in.nodes[2].NextWireGuardKey = testKey("c") },
			[]string{"n2 b 51871 0s"}, nil},
	} {
		in := testInput()
		c.change(&in)
		if got := on(in, in.device); !slices.Equal(got, c.usual) {
			t.Errorf("%s: %s has %q, want %q", name, DeviceName, got, c.usual)
		}
		if got := on(in, beside); !slices.Equal(got, c.beside) {
			t.Errorf("%s: %s has %q, want %q", name, RotationDevice, got, c.beside)
		}
	}
}

func TestDerivePeersOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*peerInput)
		want   map[string]string // problem, or else endpoint, by node
	}{
		"no device": {func(in *peerInput) { in.device = &Device{} }, map[string]string{}},
		"IPv6":      {func(in *peerInput) { in.ipv6 = true }, map[string]string{"n2": "[2001:db8::2]:51871"}},
		"only IPv4 there": {func(in *peerInput) { in.ipv6, in.nodes[1].Addresses = true, in.nodes[0].Addresses },
			map[string]string{"n2": "192.0.2.1:51871"}},
		"no address": {func(in *peerInput) { in.nodes[1].Addresses = nil },
			map[string]string{"n2": "node n2 has no address to send to"}},
		"a copy of another node's key": {func(in *peerInput) { in.nodes[2].WireGuardKey = testKey("b") },
			map[string]string{"n2": "nodes n2 and n3 have the same key: rotate it on one of them"}},
		"a copy of this node's key": {func(in *peerInput) { in.nodes[2].WireGuardKey = testKey("a") },
			map[string]string{"n2": "192.0.2.2:51871"}},
		"two peers": {func(in *peerInput) { in.nodes[2].WireGuardKey = testKey("c") },
			map[string]string{"n2": "192.0.2.2:51871", "n3": "192.0.2.3:51871"}},
	} {
		in := testInput()
		c.change(&in)
		got := map[string]string{}
		for _, p := range derivePeers(in) {
			got[p.Node] = p.Problem
			if p.Problem == "" {
				got[p.Node] = p.Endpoint.String()
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
