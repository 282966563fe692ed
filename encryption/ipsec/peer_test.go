package ipsec

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/cluster"
)

func testEpoch(c string) string { return strings.Repeat(c, 2*cluster.IPsecEpochSize) }

func testNode(name, epoch string, key int, parts ...string) *cluster.Node {
	n := &cluster.Node{Name: name}
	if epoch != "" {
		n.IPsec = cluster.IPsec{Epoch: testEpoch(epoch), Key: key}
	}
	for _, p := range parts {
		if a, err := netip.ParseAddr(p); err == nil {
			n.Addresses = append(n.Addresses, a)
		} else {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
		}
	}
	return n
}

func testInput(t *testing.T) peerInput {
	return peerInput{
		node: "n1", epoch: testEpoch("a"), device: 7,
		secrets: []held{{secret: *testSecret(t, "4", "14")}, {secret: *testSecret(t, "3", "13")}},
		nodes: []*cluster.Node{
			testNode("n1", "a", 4, "192.0.2.1", "2001:db8::1", "10.0.1.0/24"),
			testNode("n2", "b", 3, "192.0.2.2", "2001:db8::2", "10.0.2.0/24", "fd00:2::/64"),
			testNode("n3", "", 0, "192.0.2.3", "10.0.3.0/24"),
		},
		outside: map[string][]netip.Prefix{"n2": {netip.MustParsePrefix("10.9.9.9/32")}},
	}
}

func TestDerivePeers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*peerInput)
		want   map[string]string // problem, or else addresses and keys, by node
	}{
		"rotation": {func(*peerInput) {}, map[string]string{"n2": "192.0.2.1→192.0.2.2 4,3 3"}},
		"rotated": {func(in *peerInput) { in.nodes[1].IPsec.Key = 4 },
			map[string]string{"n2": "192.0.2.1→192.0.2.2 4,3 4"}},
		"another key": {func(in *peerInput) { in.nodes[1].IPsec.Key = 9 },
			map[string]string{"n2": "192.0.2.1→192.0.2.2 4,3 4"}},
		"IPv6": {func(in *peerInput) { in.ipv6 = true },
			map[string]string{"n2": "2001:db8::1→2001:db8::2 4,3 3"}},
		"no device": {func(in *peerInput) { in.device = 0 }, map[string]string{}},
		"no key":    {func(in *peerInput) { in.secrets = nil }, map[string]string{}},
		"no address there": {func(in *peerInput) { in.nodes[1].Addresses = nil },
			map[string]string{"n2": "node n2 has no address of the underlay's family (underlayProtocol)"}},
		"no address here": {func(in *peerInput) { in.nodes[0].Addresses = nil },
			map[string]string{"n2": "this node has no address of the underlay's family (underlayProtocol)"}},
		"this node's address": {func(in *peerInput) { in.nodes[1].Addresses = in.nodes[0].Addresses },
			map[string]string{"n2": "node n2 has this node's address 192.0.2.1"}},
		"a copy of this node": {func(in *peerInput) { in.nodes[1].IPsec.Epoch = testEpoch("a") },
			map[string]string{"n2": "nodes n1 and n2 have the same epoch: remove the folder ipsec of the run " +
				"directory on one of them, and restart its agent"}},
		"two peers": {func(in *peerInput) { in.nodes[2].IPsec = cluster.IPsec{Epoch: testEpoch("c"), Key: 4} },
			map[string]string{"n2": "192.0.2.1→192.0.2.2 4,3 3", "n3": "192.0.2.1→192.0.2.3 4,3 4"}},
	} {
		in := testInput(t)
		c.change(&in)
		got := map[string]string{}
		for _, p := range derivePeers(in) {
			if got[p.Node] = p.Problem; p.Problem == "" {
				got[p.Node] = fmt.Sprintf("%s→%s %s %d", p.Way.From, p.Way.To, p.TableRow()[3], p.Out)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// The node receives with all keys and sends with one, and both nodes derive the same.
func TestObjects(t *testing.T) {
	in := testInput(t)
	here, err := derivePeers(in)[0].objects()
	if err != nil {
		t.Fatal(err)
	}
	in.node, in.epoch = "n2", testEpoch("b")
	there, err := derivePeers(in)[0].objects() // n1 has published key 4
	if err != nil {
		t.Fatal(err)
	}
	if len(here.states) != 3 || len(there.states) != 3 {
		t.Fatalf("got %d and %d states, want two that receive and one that sends", len(here.states), len(there.states))
	}
	received := func(s state) state { // by the other node
		if !s.sends {
			t.Errorf("%s does not send", s)
		}
		s.sends = false
		return s
	}
	if !reflect.DeepEqual(received(here.states[2]), there.states[1]) ||
		!reflect.DeepEqual(received(there.states[2]), here.states[0]) {
		t.Errorf("what a node sends with is not what the other one receives with")
	}
	var texts []string
	for _, p := range here.policies {
		texts = append(texts, fmt.Sprintf("%s %s %s→%s", p.dir, p.prefix, p.from, p.to))
		if out := p.dir == netlink.XFRM_DIR_OUT; out != (p.spi == here.states[2].SPI) {
			t.Errorf("policy %s has SPI %#x", texts[len(texts)-1], p.spi)
		}
	}
	const want = "dir in 10.0.2.0/24 192.0.2.2→192.0.2.1\ndir fwd 10.0.2.0/24 192.0.2.2→192.0.2.1\n" +
		"dir out 10.0.2.0/24 192.0.2.1→192.0.2.2\n"
	if got := strings.Join(texts, "\n"); !strings.HasPrefix(got, want) || len(texts) != 15 {
		t.Errorf("policies:\n%s", got)
	}
}

// Selectors as the netlink package reads them are recognised, also those of IPv6 that it takes for IPv4.
func TestPrefixOf(t *testing.T) {
	for _, text := range []string{"10.0.0.0/8", "192.0.2.1/32", "fd00:2::/64", "fd00::/16", "2001:db8::/32",
		"2001:db8::/48", "2001:db8::1/128"} {
		p := netip.MustParsePrefix(text)
		ip, family := net.IP(p.Addr().AsSlice()), unix.AF_INET
		if p.Addr().Is6() {
			family = unix.AF_INET6
			if b := p.Addr().As16(); [12]byte(b[4:]) == [12]byte{} {
				ip = net.IPv4(b[0], b[1], b[2], b[3])
			}
		}
		if got, ok := prefixOf(ip, family, p.Bits()); !ok || got != p {
			t.Errorf("%s: got %s, %v", text, got, ok)
		}
	}
}

func TestParseStat(t *testing.T) {
	s, err := parseStat("XfrmInError             \t0\nXfrmInNoStates          \t12\nXfrmOutPolDead          \t1\n")
	if err != nil || len(s) != 3 || strings.Join(s.errors(), ", ") != "XfrmInNoStates 12, XfrmOutPolDead 1" {
		t.Errorf("got %v, %v", s, err)
	}
	if kind, name := labels("XfrmInNoStates"); kind != "inbound" || name != "no_state" {
		t.Errorf("labels %s, %s", kind, name)
	}
	if kind, _ := labels("XfrmOfTomorrow"); kind != "" {
		t.Errorf("labels of an unknown counter: %s", kind)
	}
	for _, bad := range []string{"XfrmInError\n", "XfrmInError x\n"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
