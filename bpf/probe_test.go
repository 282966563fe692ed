package bpf

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet/packettest"
)

// probeFlow is a health check of a Service of lb: a connection from node:40000 to the backend's port 8080.
type probeFlow struct {
	backend  string
	frontend uint16 // the Service's port
	port     uint16 // of the check at lb, 0: the Service's
	proto    uint8  // of the Service, 0: TCP
}

// rows are the flow's in probes, of a family.
func (p probeFlow) rows(family int) (request, reply DatapathNatTuple, there, back DatapathProbe) {
	n := worldNames()
	addr := func(name string) DatapathAddr { return Addr(families(n[name])[family]) }
	at := p.port
	if at == 0 {
		at = p.frontend
	}
	there = DatapathProbe{Addr: addr("lb"), Port: be16(at), FrontendPort: be16(p.frontend), Proto: p.proto}
	if p.proto == 0 {
		there.Proto = unix.IPPROTO_TCP
	}
	request = DatapathNatTuple{Src: addr("node"), Sport: be16(40000), Dst: addr(p.backend), Dport: be16(8080),
		Proto: unix.IPPROTO_TCP}
	reply = DatapathNatTuple{Src: there.Addr, Sport: there.Port, Dst: request.Src, Dport: request.Sport,
		Proto: unix.IPPROTO_TCP}
	return request, reply, there, DatapathProbe{Addr: request.Dst, Port: request.Dport, Reply: 1}
}

// open announces the flow for both families.
func (p probeFlow) open(t testing.TB, w *world) {
	t.Helper()
	empty(t, w.Probes)
	for family := range 2 {
		request, reply, there, back := p.rows(family)
		must(t, w.Probes.Put(request, there))
		must(t, w.Probes.Put(reply, back))
	}
}

// went checks how the flow's packets went, and how many of each direction were translated. The family is that of which
// there are packets, if there are any.
func (p probeFlow) went(want DatapathProbeWay, sent, received uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var ways []DatapathProbeWay
		var got [2]uint32
		for family := range 2 {
			request, reply, there, back := p.rows(family)
			must(t, w.Probes.Lookup(request, &there))
			must(t, w.Probes.Lookup(reply, &back))
			ways = append(ways, DatapathProbeWay(there.Way))
			got[0] += there.Packets
			got[1] += back.Packets
		}
		if !slices.Contains(ways, want) || slices.Max(ways) != want || got != [2]uint32{sent, received} {
			t.Fatalf("ways %v, %d packets sent, %d received; want way %d, %d and %d", ways, got[0], got[1], want, sent,
				received)
		}
	}
}

const probeMark = uint32(DatapathProbeMarkPROBE_MARK)

// probing is a packet of a health check; other bits of the mark are not ours.
var probing = packettest.Options{Mark: probeMark | 5}

// unmarked checks that to_wire would not translate the packet again.
func unmarked(r packettest.Result) error {
	if r.Skb.Mark != 5 {
		return fmt.Errorf("the mark is %#x, want 5", r.Skb.Mark)
	}
	return nil
}

// sentProbe is a packet of a health check that becomes a client's.
func sentProbe(in, want, out string, ignore ...string) step {
	return step{at: "to_wire eth0", in: in, want: want, out: out, ret: actRedirect, options: probing, check: unmarked,
		ignore: ignore}
}

// plainProbe is one that leaves as it is.
func plainProbe(in string) step {
	return step{at: "to_wire eth0", in: in, want: "FORWARD_STACK", out: "=", options: probing}
}

func probeTables() []table {
	pod := probeFlow{backend: "c", frontend: portC}
	return []table{
		{name: "probes, direct", settings: settingsOf(servicing, direct),
			rows: slices.Concat(optioned("to node2", pod.optionSteps), pod.notDirectRows(), ownFrontendRows(),
				probesOnlyRows())},
		{name: "probes, direct, tracking", settings: settingsOf(servicing, direct, tracking),
			rows: optioned("to node2", pod.optionSteps)},
		{name: "probes, direct, tunnel", settings: settingsOf(servicing, direct, tunnel4),
			rows: optioned("into the tunnel", func(ip optionIP) []step {
				s := sentProbe(`eth none > none | ip node > c | tcp 40000 > 8080 S`, "FORWARD_TUNNEL",
					`eth none > none | `+ip("node > c ttl 63", 81)+` | tcp 40000 > 8080 S`)
				s.at, s.before, s.after = "to_wire vx0", pod.open, pod.went(DatapathProbeWayPROBE_DSR, 1, 0)
				return []step{s}
			})},
		{name: "probes, direct by IPIP", settings: settingsOf(servicing, direct, ipip),
			rows: slices.Concat(pod.encapRows("", "ttl 63 df"), foreignProbeRows())},
		{name: "probes, direct by Geneve", settings: settingsOf(servicing, direct, geneve),
			rows: slices.Concat(pod.encapRows(" | udp 1 > 6081 nosum | geneve vni 1", "ttl 63 df", "udp.sport"),
				[]row{{name: "no DSR out of the cluster", steps: foreignPlain()}})},
		{name: "probes, SNAT", settings: settingsOf(servicing), rows: []row{{name: "nothing is looked up",
			steps: []step{with(plainProbe(`eth node > node2 | ip node > c | tcp 40000 > 8080 S`), pod.open,
				pod.went(DatapathProbeWayPROBE_UNSEEN, 0, 0))}}}},
	}
}

func with(s step, before, after func(testing.TB, *world)) step {
	s.before, s.after = before, after
	return s
}

// optionSteps: a connection to c, in the words of a client that connects to lb.
func (p probeFlow) optionSteps(ip optionIP) []step {
	return []step{
		with(sentProbe(`eth node > node2 | ip node > c | tcp 40000 > 8080 S seq 1 mss 1100`, "FORWARD_RESOLVE",
			`eth node > node2 | `+ip("node > c ttl 63", 81)+` | tcp 40000 > 8080 S seq 1 mss 1100`), p.open, nil),
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 81 > 40000 SA seq 5 ack 2`,
			want: "FORWARD_STACK", out: `eth router > node | ip c > node | tcp 8080 > 40000 SA seq 5 ack 2`},
		sentProbe(`eth node > node2 | ip node > c | tcp 40000 > 8080 A | len 1100`, "FORWARD_WIRE",
			`eth node > node2 | ip node > c ttl 63 | tcp 40000 > 8080 A | len 1100`),
		with(sentProbe(`eth node > node2 | ip node > c | tcp 40000 > 8080 R`, "FORWARD_WIRE",
			`eth node > node2 | ip node > c ttl 63 | tcp 40000 > 8080 R`), nil,
			p.went(DatapathProbeWayPROBE_DSR, 3, 1)),
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 80 > 40000 SA`,
			want: "FORWARD_STACK", out: "="},
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 81 > 40001 SA`,
			want: "FORWARD_STACK", out: "="},
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | udp 81 > 40000`,
			want: "FORWARD_STACK", out: "="},
		{at: "from_wire eth0", in: `eth router > node | ip node > c | tcp 40000 > 8080 S`, want: "DROP_SPOOFED_OWN",
			out: "=", after: p.went(DatapathProbeWayPROBE_DSR, 3, 1)},
	}
}

// encapRows: the packet with its option is in another; more follows the outer IP header.
func (p probeFlow) encapRows(more, ends4 string, ignore ...string) (rows []row) {
	for _, r := range optioned("to node2, inside of another", func(ip optionIP) []step {
		const in = `eth node > node2 | ip node > c | tcp 40000 > 8080 `
		outer := `eth node > node2 | ip node > node2 ttl 63` + more + ` | `
		if ip("", 0)[2] == '4' {
			outer = `eth node > node2 | ip4 node > node2 ` + ends4 + more + ` | `
		}
		return []step{
			with(sentProbe(in+`S seq 1`, "FORWARD_RESOLVE", outer+ip("node > c", 81)+` | tcp 40000 > 8080 S seq 1`,
				ignore...), p.open, nil),
			with(sentProbe(in+`A | len 1000`, "FORWARD_WIRE", outer+`ip node > c | tcp 40000 > 8080 A | len 1000`,
				ignore...), nil, p.went(DatapathProbeWayPROBE_DSR, 2, 0)),
			sentProbe(in+`A | len 1445`, "DROP_TOO_BIG", ""),
		}
	}) {
		r.steps[2].ret, r.steps[2].check = actShot, nil
		rows = append(rows, r)
	}
	return rows
}

// foreignProbeRows: the backend is in the world, takes IPIP, and has the address of lb.
func foreignProbeRows() []row {
	steps := func(p probeFlow, outer, inner string) []step {
		return []step{
			with(sentProbe(`eth node > router | ip node > world2 | tcp 40000 > 8080 S mss 1100`, "FORWARD_RESOLVE",
				`eth node > router | `+outer+` | `+inner+` S mss 1100`), p.open, nil),
			{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 83 > 40000 SA`, want: "FORWARD_STACK",
				out: `eth router > node | ip world2 > node | tcp 8080 > 40000 SA`},
			with(sentProbe(`eth node > router | ip node > world2 | tcp 40000 > 8080 A | "x"`, "FORWARD_WIRE",
				`eth node > router | `+outer+` | `+inner+` A | "x"`), nil, p.went(DatapathProbeWayPROBE_DSR, 2, 1)),
		}
	}
	const outer4, outer6 = `ip4 node > world2 ttl 63 df`, `ip6 node > world2 ttl 63`
	tcp := probeFlow{backend: "world2", frontend: portWorld}
	udp := probeFlow{backend: "world2", frontend: portWorld, proto: unix.IPPROTO_UDP}
	port := probeFlow{backend: "world2", frontend: portWorld, port: 9000}
	rows := []row{}
	for name, p := range map[string]probeFlow{"a backend in the world": tcp, "a Service of UDP": udp} {
		inner := `ip node > lb | tcp 40000 > 83`
		rows = append(rows, only4(row{name: name, steps: steps(p, outer4, inner)}),
			only6(row{name: name, steps: steps(p, outer6, inner)}))
	}
	ownPort := func(outer string) []step {
		list := steps(port, outer, `ip node > lb | tcp 40000 > 9000`)
		list[1].in = `eth router > node | ip lb > node | tcp 9000 > 40000 SA`
		return list
	}
	return append(rows, only4(row{name: "a port of the check", steps: ownPort(outer4)}),
		only6(row{name: "a port of the check", steps: ownPort(outer6)}))
}

// foreignPlain: only IPIP reaches a backend in the world by DSR.
func foreignPlain() []step {
	p := probeFlow{backend: "world2", frontend: portWorld}
	return []step{
		with(plainProbe(`eth node > router | ip node > world2 | tcp 40000 > 8080 S`), p.open,
			p.went(DatapathProbeWayPROBE_PLAIN, 0, 0)),
		{at: "from_wire eth0", in: `eth router > node | ip world2 > node | tcp 8080 > 40000 SA`, want: "FORWARD_STACK",
			out: "="},
	}
}

// notDirectRows are packets to c that leave as they are.
func (p probeFlow) notDirectRows() []row {
	const in = `eth node > node2 | ip node > c | tcp 40000 > 8080 S`
	unseen := p.went(DatapathProbeWayPROBE_UNSEEN, 0, 0)
	plain := func(name string, f probeFlow, want DatapathProbeWay) row {
		return row{name: name, steps: []step{with(plainProbe(in), f.open, f.went(want, 0, 0))}}
	}
	return []row{
		{name: "without the mark", steps: []step{{at: "to_wire eth0", in: in, want: "FORWARD_STACK", out: "=",
			options: packettest.Options{Mark: 5}, before: p.open, after: unseen}}},
		{name: "with another mark", steps: []step{{at: "to_wire eth0", in: in, want: "FORWARD_STACK", out: "=",
			options: packettest.Options{Mark: 0xffffffff}, before: p.open, after: unseen}}},
		{name: "the mark on packets of others", steps: []step{
			with(plainProbe(`eth node > node2 | ip node > c | tcp 40001 > 8080 S`), p.open, nil),
			plainProbe(`eth node > node2 | ip node > c | udp 40000 > 8080`),
			plainProbe(`eth node > node2 | ip node > c | icmp echo id 1 seq 1`),
			with(plainProbe(`eth node > router | ip lb > node | tcp 81 > 40000 SA`), nil, unseen),
		}},
		plain("no frontend", probeFlow{backend: "c", frontend: 99}, DatapathProbeWayPROBE_NO_FRONTEND),
		plain("a port of the check, that no node would accept", probeFlow{backend: "c", frontend: portC, port: 9000},
			DatapathProbeWayPROBE_PLAIN),
		plain("TCP for a Service of UDP, that no node would accept", probeFlow{backend: "c", frontend: portC,
			proto: unix.IPPROTO_UDP}, DatapathProbeWayPROBE_PLAIN),
		{name: "a Service with SNAT", steps: []step{with(plainProbe(in), func(t testing.TB, w *world) {
			snatsTargets(t, w)
			probeFlow{backend: "c", frontend: portTargets}.open(t, w)
		}, probeFlow{backend: "c", frontend: portTargets}.went(DatapathProbeWayPROBE_PLAIN, 0, 0))}},
		{name: "a backend by no wire", steps: []step{with(plainProbe(
			`eth node > none | ip node > other | tcp 40000 > 8080 S`), func(t testing.TB, w *world) {
			w.inCluster(t, "other")
			probeFlow{backend: "other", frontend: portC}.open(t, w)
		}, probeFlow{backend: "other", frontend: portC}.went(DatapathProbeWayPROBE_PLAIN, 0, 0))}},
	}
}

// inCluster makes an address that of a pod of another node.
func (w *world) inCluster(t testing.TB, name string) {
	t.Helper()
	for _, a := range families(worldNames()[name]) {
		key := Prefix(netip.PrefixFrom(a, a.BitLen()))
		must(t, w.Prefixes.Put(key, DatapathPrefix{Flags: uint32(DatapathPrefixFlagPREFIX_CLUSTER)}))
		t.Cleanup(func() { must(t, w.Prefixes.Delete(key)) })
	}
}

// ownFrontendRows: lb is an address of the node, from which no packet comes in but replies to health checks.
func ownFrontendRows() []row {
	p := probeFlow{backend: "c", frontend: portC}
	return []row{{name: "the frontend is the node's own address", steps: []step{
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 81 > 40000 SA seq 5 ack 2`,
			want: "FORWARD_STACK", out: `eth router > node | ip c > node | tcp 8080 > 40000 SA seq 5 ack 2`,
			before: func(t testing.TB, w *world) {
				p.open(t, w)
				for _, a := range families(worldNames()["lb"]) {
					must(t, w.MarkOwn(a))
					must(t, w.Endpoints.Put(Addr(a), DatapathEndpoint{Slot: worldHost,
						Flags: uint8(DatapathEndpointFlagENDPOINT_HOST)}))
					t.Cleanup(func() { must(t, w.Endpoints.Delete(Addr(a))) })
				}
			}},
		{at: "from_wire eth0", in: `eth router > node | ip lb > node | tcp 81 > 40001 SA`, want: "DROP_SPOOFED_OWN",
			out: "="},
		{at: "from_wire eth0", in: `eth router > node | ip lb > world | tcp 81 > 40000 SA`, want: "DROP_SPOOFED_OWN",
			out: "=", after: p.went(DatapathProbeWayPROBE_UNSEEN, 0, 1)},
	}}}
}

// probesOnlyRows: to_wire is attached for health checks only.
func probesOnlyRows() []row {
	p := probeFlow{backend: "c", frontend: portC}
	set := func(t testing.TB, w *world) {
		p.open(t, w)
		must(t, w.ProbesOnly.Set(uint32(1)))
		t.Cleanup(func() { must(t, w.ProbesOnly.Set(uint32(0))) })
	}
	return []row{
		{name: "nothing else is looked at", steps: []step{
			{at: "to_wire eth0", in: `eth node > node2 | ip node > c | tcp 40000 > 8080 S`, want: "", out: "=",
				before: set},
			{at: "to_wire eth0", in: `eth node > router | ip lb > node | tcp 81 > 40000 SA`, want: "", out: "=",
				after: p.went(DatapathProbeWayPROBE_UNSEEN, 0, 0)},
			with(sentProbe(`eth node > node2 | ip node > c | tcp 40000 > 8080 A`, "FORWARD_RESOLVE",
				`eth node > node2 | ip node > c ttl 63 | tcp 40000 > 8080 A`), nil,
				p.went(DatapathProbeWayPROBE_DSR, 1, 0)),
		}},
	}
}
