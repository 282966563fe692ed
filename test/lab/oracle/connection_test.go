package oracle

import (
	"net/netip"
	"strings"
	"testing"

	"myelin/test/policy/scenario"
)

// silentA isolates pod a, which may neither send nor receive.
const silentA = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: x}
spec: {podSelector: {matchLabels: {role: attacker}}, policyTypes: [Egress]}
`

// enforceAlso adds policies to those of the cluster.
func enforceAlso(t *testing.T, m *Model, text string) {
	t.Helper()
	w := *m.World
	if err := scenario.Add(&w, []byte(text)); err != nil {
		t.Fatal(err)
	}
	m.Enforce(&w)
}

// TestConnections: the policies about the side that opened a connection decide on both directions; those of UDP that a
// datagram of the server may begin as well go on; replies to a masqueraded one never do.
func TestConnections(t *testing.T) {
	const world = "198.51.100.1"
	for _, row := range []struct {
		name       string
		src, dst   string
		proto      uint8
		translated bool
		before     bool // whether the client may open it under the cluster's policies
		denied     bool // whether it is denied when a may send nothing any more
	}{
		{"allowed", "10.0.2.2", "10.0.1.2", TCP, false, true, false},
		{"never allowed", "10.0.1.3", "10.0.1.2", TCP, false, false, true},
		{"TCP that the peer opened", "10.0.2.2", "10.0.1.3", TCP, false, true, false},
		{"TCP that it opened", "10.0.1.3", "10.0.2.2", TCP, false, true, true},
		{"UDP that either may open", "10.0.1.3", "10.0.2.2", UDP, false, true, false},
		{"UDP to the world", "10.0.1.3", world, UDP, true, true, true},
		{"TCP to the world", "10.0.1.3", world, TCP, true, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := testModel(t)
			src, dst := netip.MustParseAddr(row.src), netip.MustParseAddr(row.dst)
			c := Connection{Flow: Flow{Src: src, Dst: dst, Proto: row.proto, SPort: 40000, DPort: 81},
				Translated: row.translated}
			if got := m.Opens(c); got != row.before {
				t.Errorf("the client may open it: %t, want %t", got, row.before)
			}
			enforceAlso(t, m, silentA)
			for _, client := range []bool{true, false} {
				why := m.Denied(c, client)
				if (why != "") != row.denied || row.denied && !strings.Contains(why, "NetworkPolicy x/") {
					t.Errorf("for the client %t: %q, want it denied: %t", client, why, row.denied)
				}
			}
		})
	}
}

// TestConnectionHas: the client's address and port tell a connection, whatever its server's address is.
func TestConnectionHas(t *testing.T) {
	c := Connection{Flow: Flow{Src: netip.MustParseAddr("10.0.1.3"), Dst: netip.MustParseAddr("10.0.2.2"), Proto: TCP,
		SPort: 40000, DPort: 8080}}
	service := Flow{Src: netip.MustParseAddr("10.96.0.1"), Dst: c.Src, Proto: TCP, SPort: 80, DPort: 40000}
	if has, client := c.Has(service); !has || !client {
		t.Errorf("a packet of the Service to the client: %t, %t", has, client)
	}
	if has, client := c.Has(c.Flow); !has || client {
		t.Errorf("a packet to the server: %t, %t", has, client)
	}
	service.DPort++
	if has, _ := c.Has(service); has {
		t.Error("a packet to another port belongs to it")
	}
}

// TestAcceptedFromNode: the world sees masqueraded flows as those of a node, which the node's policies are not about.
func TestAcceptedFromNode(t *testing.T) {
	m := testModel(t)
	enforceAlso(t, m, "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: hosts}\n"+
		"spec: {nodeSelector: {}, egress: [{}]}\n")
	ip := netip.MustParseAddr
	seen := Flow{Src: ip("192.168.64.1"), Dst: ip("198.51.100.1"), Proto: TCP, SPort: 20000, DPort: 53}
	if m.Accepted(seen) == "" {
		t.Error("a flow of the node's own is not denied")
	}
	m.Dialled(Flow{Src: ip("10.0.1.3"), Dst: seen.Dst, Proto: TCP, SPort: 40000, DPort: 53})
	if why := m.Accepted(seen); why != "" {
		t.Error("a pod's masqueraded flow:", why)
	}
	seen.Src = ip("192.168.64.2")
	if m.Accepted(seen) == "" {
		t.Error("the same by another node is not denied")
	}
}

// TestBlocked: packets from a prefix of the denylist may not arrive at nodes and pods, whatever policies say; the world
// may get packets to it.
func TestBlocked(t *testing.T) {
	m := testModel(t)
	ip := netip.MustParseAddr
	flow := Flow{Src: ip("10.0.1.3"), Dst: ip("198.51.100.1"), Proto: TCP, SPort: 40000, DPort: 53}
	back, other := flow.reverse(), flow.reverse()
	other.Src = ip("192.168.64.254")
	for _, blocked := range []bool{false, true} {
		if blocked {
			m.Blocked = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}
		c := Connection{Flow: flow, Translated: true}
		if m.Opens(c) == blocked || (m.Denied(c, true) != "") != blocked || m.Denied(c, false) != "" {
			t.Errorf("blocked %t: opens %t, %q at the client, %q at the server", blocked, m.Opens(c), m.Denied(c, true),
				m.Denied(c, false))
		}
		if why := m.Accepted(back); (why != "") != blocked {
			t.Errorf("blocked %t: a connection from there: %q", blocked, why)
		}
		a := &Attempt{N: 7, From: m.named("world"), Claimed: back.Src, Real: []Flow{back}, Begins: true}
		m.Sent(a)
		if why := m.Check(m.named("a"), Seen{Flow: back, Whole: true, Tag: 7, Tagged: true}); (why != "") != blocked {
			t.Errorf("blocked %t: a packet from there: %q", blocked, why)
		}
		if why := m.Accepted(other); why != "" {
			t.Errorf("blocked %t: a connection from another address: %q", blocked, why)
		}
	}
}
