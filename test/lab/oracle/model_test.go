package oracle

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/test/packet"
	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
)

// cluster is two nodes with two pods each; v may be reached by f, and by node n2 from the address of its pods' gateway.
const cluster = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.168.64.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.168.64.2}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: x}
---
apiVersion: v1
kind: Pod
metadata: {name: v, namespace: x, labels: {role: victim}}
spec: {nodeName: n1, containers: []}
status: {podIPs: [{ip: 10.0.1.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, labels: {role: attacker}}
spec: {nodeName: n1, containers: []}
status: {podIPs: [{ip: 10.0.1.3}]}
---
apiVersion: v1
kind: Pod
metadata: {name: f, namespace: x, labels: {role: friend}}
spec: {nodeName: n2, containers: []}
status: {podIPs: [{ip: 10.0.2.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: v, namespace: x}
spec:
  podSelector: {matchLabels: {role: victim}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}, {ipBlock: {cidr: 10.0.2.0/28}}]}]
`

func testModel(t *testing.T) *Model {
	t.Helper()
	w := &reference.World{}
	if err := scenario.Add(w, []byte(cluster)); err != nil {
		t.Fatal(err)
	}
	ip := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	m := &Model{Places: []*Place{
		{Name: "n1", Node: "n1", Addrs: ip("192.168.64.1")},
		{Name: "n2", Node: "n2", Addrs: ip("192.168.64.2")},
		{Name: "world", Addrs: ip("198.51.100.1", "192.168.64.254")},
		{Name: "v", Node: "n1", Pod: true, Addrs: ip("10.0.1.2")},
		{Name: "a", Node: "n1", Pod: true, Addrs: ip("10.0.1.3")},
		{Name: "f", Node: "n2", Pod: true, Addrs: ip("10.0.2.2")},
	}, Gateways: map[string][]netip.Addr{"n1": ip("10.0.1.1"), "n2": ip("10.0.2.1")}}
	m.Enforce(w)
	return m
}

func (m *Model) named(name string) *Place {
	return m.Places[slices.IndexFunc(m.Places, func(p *Place) bool { return p.Name == name })]
}

func flow(src, dst string, proto uint8, sport, dport uint16) Flow {
	return Flow{netip.MustParseAddr(src), netip.MustParseAddr(dst), proto, sport, dport}
}

// TestCheck has a place receive a packet, after others were sent.
func TestCheck(t *testing.T) {
	const v, a, f = "10.0.1.2", "10.0.1.3", "10.0.2.2"
	for name, row := range map[string]struct {
		from   string
		sent   Flow
		before []Flow // by their own sources
		at     string
		want   string // what is wrong with it
	}{
		"allowed":                      {"f", flow(f, v, TCP, 1000, 80), nil, "v", ""},
		"denied":                       {"a", flow(a, v, TCP, 1000, 80), nil, "v", "policies do not allow it"},
		"denied, with a server's port": {"a", flow(a, v, TCP, 80, 40000), nil, "v", "policies do not allow it"},
		"answer":                       {"a", flow(a, v, UDP, 80, 40000), []Flow{flow(v, a, UDP, 40000, 80)}, "v", ""},
		"answer to another port": {"a", flow(a, v, UDP, 80, 40001), []Flow{flow(v, a, UDP, 40000, 80)},
			"v", "policies"},
		"own node's name by the wire": {"world", flow("192.168.64.1", v, UDP, 1, 2), nil, "v", "this node's own"},
		"gateway's name by the wire":  {"world", flow("10.0.1.1", v, UDP, 1, 2), nil, "v", "this node's own"},
		"other gateway's name":        {"world", flow("10.0.2.1", v, UDP, 1, 2), nil, "v", ""},
		"other node's name":           {"world", flow("192.168.64.2", v, UDP, 1, 2), nil, "v", "policies do not"},
		"pod's name by the wire":      {"world", flow(a, v, UDP, 1, 2), nil, "v", "this node's own"},
		"friend's name by the wire":   {"world", flow(f, v, UDP, 1, 2), nil, "v", ""},
		"friend's name by a pod":      {"a", flow(f, v, UDP, 1, 2), nil, "v", "pod a sent it in the name of"},
		"world":                       {"world", flow("198.51.100.1", v, UDP, 1, 2), nil, "v", "policies do not"},
		"no policy":                   {"world", flow("198.51.100.1", a, UDP, 1, 2), nil, "a", ""},
		"broadcast to a node":         {"world", flow("198.51.100.1", "255.255.255.255", UDP, 1, 2), nil, "n1", ""},
	} {
		m := testModel(t)
		for i, before := range row.before {
			real := []Flow{before}
			m.Sent(&Attempt{N: uint64(i + 1), From: m.place(before.Src), Claimed: before.Src, Real: real, Begins: true})
		}
		m.Sent(&Attempt{N: 9, From: m.named(row.from), Claimed: row.sent.Src, Real: []Flow{row.sent}})
		why := m.Check(m.named(row.at), Seen{Flow: row.sent, Whole: true, Tag: 9, Tagged: true})
		if row.want == "" && why != "" || !strings.Contains(why, row.want) {
			t.Errorf("%s: %q, want %q", name, why, row.want)
		}
	}
}

// TestCheckEncapsulated has nodes, and others, send what is encapsulated.
func TestCheckEncapsulated(t *testing.T) {
	for name, row := range map[string]struct{ from, outer, inner, want string }{
		"by a pod":                       {"a", "10.0.1.3", "10.0.2.2", "pod a sent it"},
		"by the world":                   {"world", "198.51.100.1", "10.0.2.2", "is no node"},
		"by another node":                {"n2", "192.168.64.2", "10.0.2.2", ""},
		"by another node, of this one's": {"n2", "192.168.64.2", "10.0.1.3", "this node's own"},
	} {
		m := testModel(t)
		f := flow(row.inner, "10.0.1.2", UDP, 1, 2)
		outer := netip.MustParseAddr(row.outer)
		m.Sent(&Attempt{N: 9, From: m.named(row.from), Claimed: f.Src, Outer: outer, Real: []Flow{f}})
		why := m.Check(m.named("v"), Seen{Flow: f, Whole: true, Tag: 9, Tagged: true})
		if row.want == "" && why != "" || !strings.Contains(why, row.want) {
			t.Errorf("%s: %q, want %q", name, why, row.want)
		}
	}
}

// TestCheckError has an ICMP error quote the receiver's flow, and another's.
func TestCheckError(t *testing.T) {
	own, other := flow("10.0.1.2", "10.0.1.3", UDP, 5, 6), flow("10.0.1.3", "10.0.2.2", UDP, 5, 6)
	for _, quoted := range []Flow{own, other} {
		m := testModel(t)
		for i, f := range []Flow{own, other} {
			m.Sent(&Attempt{N: uint64(i), From: m.place(f.Src), Claimed: f.Src, Real: []Flow{f}, Begins: true})
		}
		e := flow("10.0.1.3", "10.0.1.2", ICMP, 0, 3)
		m.Sent(&Attempt{N: 9, From: m.named("a"), Claimed: e.Src, Real: []Flow{e}})
		why := m.Check(m.named("v"), Seen{Flow: e, Whole: true, Error: true, Quoted: quoted, Tag: 9, Tagged: true})
		if (why == "") != (quoted == own) {
			t.Errorf("an error about %s: %q", quoted, why)
		}
	}
}

// TestCheckAnswer has kernels, and a Service's pod, answer.
func TestCheckAnswer(t *testing.T) {
	const v, a, f, node, gateway = "10.0.1.2", "10.0.1.3", "10.0.2.2", "192.168.64.1", "10.0.1.1"
	front := Frontend{netip.MustParseAddrPort("10.96.0.1:80"), TCP}
	ask := flow(v, "10.96.0.1", TCP, 4000, 80)
	unreachable := Seen{Flow: flow(f, v, ICMP, 0, 3), Error: true, Quoted: flow(v, f, 4, 0, 0)}
	strange := Seen{Flow: flow(f, v, ICMP, 0, 3), Error: true, Quoted: flow(a, f, UDP, 1, 2)}
	for name, row := range map[string]struct {
		before []Flow // by their own sources
		from   string
		sent   Flow
		outer  string
		seen   Seen
		at     string
		want   string // what is wrong with it
	}{
		"to a gateway": {nil, "world", flow(gateway, f, ICMP, 7, 8), "", Seen{Flow: flow(f, node, ICMP, 7, 0)},
			"n1", ""},
		"of a group": {nil, "world", flow(gateway, "224.0.0.1", ICMP, 7, 8), "",
			Seen{Flow: flow("192.168.64.2", node, ICMP, 7, 0)}, "n1", ""},
		"error to its sender": {nil, "v", flow(v, f, ICMP, 0, 3), v, unreachable, "v", ""},
		"error about another": {nil, "v", flow(v, f, ICMP, 0, 3), v, strange, "v", ""},
		"error of another": {nil, "a", flow(a, v, ICMP, 0, 3), "", Seen{Flow: flow(a, v, ICMP, 0, 3), Error: true},
			"v", "policies"},
		"of a Service": {[]Flow{ask}, "a", flow(a, v, TCP, 8080, 4000), "",
			Seen{Flow: flow("10.96.0.1", v, TCP, 80, 4000)}, "v", ""},
		"of a Service, to another port": {[]Flow{ask}, "a", flow(a, v, TCP, 8080, 4001), "",
			Seen{Flow: flow("10.96.0.1", v, TCP, 80, 4001)}, "v", "policies"},
		"of a Service that was not asked": {nil, "a", flow(a, v, TCP, 8080, 4000), "",
			Seen{Flow: flow("10.96.0.1", v, TCP, 80, 4000)}, "v", "policies"},
	} {
		m := testModel(t)
		m.Services = map[Frontend][]netip.AddrPort{front: {netip.MustParseAddrPort(a + ":8080")}}
		for i, before := range row.before {
			real := []Flow{before}
			m.Sent(&Attempt{N: uint64(i + 1), From: m.place(before.Src), Claimed: before.Src, Real: real, Begins: true})
		}
		sent := &Attempt{N: 9, From: m.named(row.from), Claimed: row.sent.Src, Real: []Flow{row.sent}}
		if row.outer != "" {
			sent.Outer = netip.MustParseAddr(row.outer)
		}
		m.Sent(sent)
		row.seen.Whole, row.seen.Tag, row.seen.Tagged = true, 9, true
		why := m.Check(m.named(row.at), row.seen)
		if row.want == "" && why != "" || !strings.Contains(why, row.want) {
			t.Errorf("%s: %q, want %q", name, why, row.want)
		}
	}
}

// testGenerator makes attempts for the model's network.
func testGenerator(m *Model, seed uint64) *Generator {
	g := &Generator{R: rand.New(rand.NewPCG(seed, 1)), Model: m, Senders: m.Places[1:]}
	g.MACs = map[string]net.HardwareAddr{}
	for _, p := range m.Places {
		g.MACs[p.Name], g.MACs["gw-"+p.Name] = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	}
	g.Services = []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:80")}
	g.Open = []Flow{{Src: m.named("f").Addrs[0], Dst: m.named("v").Addrs[0], Proto: TCP, SPort: 40000, DPort: 8080}}
	return g
}

// TestGenerator makes attempts twice: they are the same, can be read back as text, and are of every kind.
func TestGenerator(t *testing.T) {
	one, two := testGenerator(testModel(t), 5), testGenerator(testModel(t), 5)
	missing := []string{"udp", "tcp S", "tcp A", "sctp", "icmp", "icmp error", "other protocol", "udp, in fragments",
		"udp, in VXLAN", "udp, in Geneve", "udp, in IP", "icmp error, in fragments",
		"tcp PA with the option of direct server return"}
	for range 4000 {
		a, b := one.Next(), two.Next()
		if !slices.EqualFunc(a.Frames, b.Frames, slices.Equal[[]byte]) || a.Kind != b.Kind {
			t.Fatalf("attempt %d is another one the second time", a.N)
		}
		missing = slices.DeleteFunc(missing, func(kind string) bool { return kind == a.Kind })
		if option := strings.Contains(a.Kind, "option"); option && (!a.Direct || a.Real[0] != one.Open[0]) {
			t.Errorf("%s: %v, with the option: %t", a.Kind, a.Real, a.Direct)
		}
		for _, frame := range a.Frames {
			text := packet.Format(frame, nil)
			if back, err := packet.Parse(text, packet.IPv4, nil); err != nil || !slices.Equal(back, frame) {
				t.Fatalf("%s: %v", text, err)
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("never made: %q", missing)
	}
}

func TestShrink(t *testing.T) {
	var history []*Attempt
	for i := range 100 {
		history = append(history, &Attempt{N: uint64(i)})
	}
	last := history[90]
	needed := func(list []*Attempt) bool {
		return slices.Contains(list, history[3]) && slices.Contains(list, history[77]) && list[len(list)-1] == last
	}
	if got := Shrink(history, last, needed); len(got) != 3 {
		t.Errorf("%d attempts are left, want 3", len(got))
	}
	if got := Shrink(history, last, func(list []*Attempt) bool { return len(list) > 200 }); got != nil {
		t.Errorf("%d attempts are left of what does not happen again", len(got))
	}
}
