package encryption

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

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
		node: "n1", key: testKey("a"), device: 7, keepalive: 25 * time.Second,
		nodes: []*cluster.Node{
			node("n1", testKey("a"), "192.0.2.1", "10.0.1.0/24"),
			node("n2", testKey("b"), "192.0.2.2", "2001:db8::2", "10.0.2.0/24", "fd00:2::/64"),
			node("n3", "", "192.0.2.3", "10.0.3.0/24"),
		},
		outside: map[string][]netip.Prefix{"n2": {netip.MustParsePrefix("10.9.9.9/32")}},
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

func TestDerivePeersOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*peerInput)
		want   map[string]string // problem, or else endpoint, by node
	}{
		"no device": {func(in *peerInput) { in.device = 0 }, map[string]string{}},
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
