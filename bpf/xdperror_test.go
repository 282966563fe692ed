package bpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// xdpErrorTables are ICMP errors that tc and XDP must translate to the same packet.
func xdpErrorTables() []table {
	return []table{
		{name: "services, XDP, errors", settings: settingsOf(servicing, longTimes), rows: xdpErrorRows()},
		{name: "services, XDP, errors, policies", settings: settingsOf(servicing, policed, longTimes),
			rows: opened(xdpTrimRows())},
		{name: "services, XDP, errors, direct", settings: settingsOf(servicing, direct, longTimes),
			rows: xdpDirectErrorRows("FORWARD_WIRE")},
		{name: "services, XDP, errors, direct by IPIP", settings: settingsOf(servicing, direct, ipip, longTimes),
			rows: xdpDirectErrorRows("FORWARD_RESOLVE")},
		{name: "services, XDP, errors, direct by Geneve", settings: settingsOf(servicing, direct, geneve, longTimes),
			rows: xdpDirectErrorRows("FORWARD_RESOLVE")},
		{name: "services, XDP, errors, tunnel", settings: settingsOf(servicing, tunnel4, longTimes),
			rows: xdpTunnelErrorRows()},
		{name: "services, XDP, errors, across families", settings: settingsOf(servicing, longTimes),
			rows: xdpCrossErrorRows()},
	}
}

// atBoth is a packet at tc, and again at XDP.
func atBoth(in, out string) []step {
	return []step{{at: "from_wire eth0", in: in, want: "FORWARD_WIRE", out: out},
		{at: xdpAt, in: in, want: "FORWARD_WIRE", out: out}}
}

// passed are packets that XDP leaves to tc.
func passed(list ...string) (steps []step) {
	for _, in := range list {
		steps = append(steps, step{at: xdpAt, in: in, want: "", out: "="})
	}
	return steps
}

// flowsBegin are three flows from world to c with SNAT: TCP and UDP to lb, and UDP to a node port.
func flowsBegin() []step {
	return []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth node2 > node | ip c > node | tcp 8080 > 51000 SA`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`, want: "FORWARD_WIRE"},
	}
}

// The errors that a router sends about a reply, and the backend about a request.
const (
	aboutReply   = `eth router > node | ip router > lb ttl 60 | %s | ip lb > world ttl 3 df | %s`
	becomesReply = `eth node > node2 | ip node > c ttl 59 | %s | ip c > node ttl 3 df | %s`
	aboutAsk     = `eth node2 > node | ip %s > node ttl 60 | %s | ip node > c ttl 3 df | %s`
	becomesAsk   = `eth node > router | ip %s > world ttl 59 | %s | ip world > lb ttl 3 df | %s`
)

func errorKinds() []string {
	return []string{`icmp too-big mtu 1280`, `icmp time-exceeded`, `icmp unreachable port`, `icmp unreachable host`,
		`icmp unreachable admin`}
}

func xdpErrorRows() []row {
	var replies, requests, cut []step
	for _, kind := range errorKinds() {
		for _, l4 := range []struct{ lb, c string }{
			{`tcp 81 > 40000 A seq 5 | len 1000`, `tcp 8080 > 51000 A seq 5 | len 1000`},
			{`tcp 81 > 40000 SA seq 5`, `tcp 8080 > 51000 SA seq 5`},
			{`udp 81 > 40000 | "odd"`, `udp 8080 > 51000 | "odd"`},
			{`udp 81 > 40000 nosum | len 64`, `udp 8080 > 51000 nosum | len 64`},
		} {
			replies = append(replies, atBoth(fmt.Sprintf(aboutReply, kind, l4.lb),
				fmt.Sprintf(becomesReply, kind, l4.c))...)
		}
		for _, from := range []struct{ who, becomes string }{{"node2", "node2"}, {"c", "lb"}} {
			requests = append(requests, atBoth(fmt.Sprintf(aboutAsk, from.who, kind, `tcp 51000 > 8080 A | len 100`),
				fmt.Sprintf(becomesAsk, from.becomes, kind, `tcp 40000 > 81 A | len 100`))...)
			requests = append(requests, atBoth(fmt.Sprintf(aboutAsk, from.who, kind, `udp 51000 > 8080 | "q"`),
				fmt.Sprintf(becomesAsk, from.becomes, kind, `udp 40000 > 81 | "q"`))...)
		}
	}
	for n := 8; n <= 20; n++ { // with TCP's checksum and without it
		if n == 17 {
			continue // half a checksum stays as it is, and is wrong
		}
		kind := fmt.Sprintf(`icmp too-big mtu 1280 quote +%d`, n)
		cut = append(cut, atBoth(fmt.Sprintf(aboutReply, kind, `tcp 81 > 40000 A seq 5`),
			fmt.Sprintf(becomesReply, kind, `tcp 8080 > 51000 A seq 5`))...)
	}
	return append([]row{
		xdp(row{name: "about replies", steps: append(flowsBegin(), replies...)}),
		xdp(row{name: "about requests", steps: append(flowsBegin(), requests...)}),
		xdp(row{name: "with short quotes", steps: append(flowsBegin(), cut...)}),
		xdp(row{name: "with padding", steps: append(flowsBegin(), atBoth(
			fmt.Sprintf(aboutReply, `icmp too-big mtu 1280`, `udp 81 > 40000 | "q" | pad 11`),
			fmt.Sprintf(becomesReply, `icmp too-big mtu 1280`, `udp 8080 > 51000 | "q" | pad 11`))...)}),
		xdp(row{name: "about a node port", steps: append([]step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 40000 > 30081`,
				want: "FORWARD_RESOLVE"}},
			atBoth(`eth router > node | ip router > node ttl 60 | icmp too-big mtu 1280 | ip node > world df `+
				`| udp 30081 > 40000 | len 64`, `eth node > node2 | ip node > c ttl 59 | icmp too-big mtu 1280 | `+
				`ip c > node df | udp 8080 > 51000 | len 64`)...)}),
		xdp(row{name: "out of another wire", steps: append(flowsBegin(),
			step{at: "from_wire eth0", in: fmt.Sprintf(aboutReply, `icmp time-exceeded`, `udp 81 > 40000`),
				want: "FORWARD_RESOLVE", before: cByOther},
			step{at: xdpAt, in: fmt.Sprintf(aboutReply, `icmp time-exceeded`, `udp 81 > 40000`), want: "", out: "="},
			step{at: xdpAt, in: fmt.Sprintf(aboutReply, `icmp time-exceeded`, `udp 81 > 40000`), want: "FORWARD_WIRE",
				ret: xdpRedirect, before: known(0, []string{"other0"}, nil),
				out: `eth 02:00:00:00:00:70 > stranger | ip node > c ttl 59 | icmp time-exceeded | ` +
					`ip c > node ttl 3 df | udp 8080 > 51000`})}),
	}, xdpErrorLeftRows()...)
}

// xdpErrorLeftRows are errors that are tc's.
func xdpErrorLeftRows() []row {
	return []row{
		xdp(row{name: "left to tc", steps: append(flowsBegin(), passed(xdpErrorsLeft()...)...)}),
		only4(xdp(row{name: "left to tc, IPv4", steps: append(flowsBegin(), passed(xdpErrorsLeft4()...)...)})),
		only6(xdp(row{name: "left to tc, IPv6", steps: append(flowsBegin(), passed(
			`eth router > node | ip6 router > lb | dstopts | icmp time-exceeded | ip6 lb > world | tcp 81 > 40000 A`,
			`eth router > node | ip6 router > lb | icmp time-exceeded | ip6 lb > world | dstopts | tcp 81 > 40000 A`,
			`eth router > node | ip6 router > lb | icmp too-big mtu 1280 | ip6 lb > world frag 7 off 8 | len 64`,
		)...)})),
		only6(xdp(row{name: "IPv4-mapped addresses", steps: append([]step{
			{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | tcp 40000 > 81 S`,
				want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth node2 > node | ip4 c > node | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE"}}, passed(
			`eth router > node | ip6 router > ::ffff:203.0.113.50 | icmp too-big mtu 1280 | `+
				`ip6 ::ffff:203.0.113.50 > ::ffff:198.51.100.7 | tcp 81 > 40000 A`,
			`eth router > node | ip6 router > ::ffff:192.168.0.1 | icmp too-big mtu 1280 | `+
				`ip6 ::ffff:192.168.0.1 > ::ffff:10.2.0.10 | tcp 51000 > 8080 A`)...)})),
		xdp(row{name: "to a pod of this node", steps: append([]step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 80`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 81`, want: "FORWARD_RESOLVE"}}, passed(
			fmt.Sprintf(aboutReply, `icmp too-big mtu 1280`, `udp 80 > 40000 | len 64`),
			`eth node2 > node | ip node2 > a | icmp too-big mtu 1280 | ip a > c | udp 40000 > 8080 | len 64`)...)}),
	}
}

// xdpTunnelErrorRows: a pod of another node does not send past the tunnel.
func xdpTunnelErrorRows() []row {
	const about = ` > gw ttl 60 | icmp unreachable host | ip gw > c ttl 3 | tcp 51000 > 8080 S`
	const becomes = ` > world ttl 59 | icmp unreachable host | ip world > node ttl 3 | tcp 40000 > 30081 S`
	steps := []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 40000 > 30081 S`, want: "FORWARD_TUNNEL"},
		{at: "from_wire vx0", in: `eth stranger > none | ip c > gw | tcp 8080 > 51000 SA`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip c` + about, want: "DROP_TUNNEL_SOURCE"},
		{at: "from_wire eth0", in: `eth router > node | ip router` + about, want: "FORWARD_RESOLVE"},
		{at: xdpAt, in: `eth router > node | ip c` + about, want: "", out: "="},
	}
	return []row{xdp(row{name: "about requests", steps: append(steps, atBoth(`eth router > node | ip router`+about,
		`eth node > router | ip router`+becomes)...)})}
}

// xdpErrorsLeft are errors that are rare, or about no flow.
func xdpErrorsLeft() []string {
	const narrow = `icmp too-big mtu 1280`
	return []string{
		fmt.Sprintf(aboutReply, narrow, `tcp 82 > 40000 A`),
		fmt.Sprintf(aboutReply, narrow, `tcp 81 > 40001 A`),
		fmt.Sprintf(aboutReply, narrow, `sctp 81 > 40000 data | len 8`),
		fmt.Sprintf(aboutReply, narrow, `icmp echo id 1 seq 1 | len 8`),
		fmt.Sprintf(aboutReply, narrow+` quote 19`, `tcp 81 > 40000 A`),
		fmt.Sprintf(aboutReply, narrow+` quote +7`, `tcp 81 > 40000 A`),
		fmt.Sprintf(aboutReply, `icmp parameter-problem pointer 8`, `tcp 81 > 40000 A`),
		fmt.Sprintf(aboutReply, narrow, `tcp 81 > 40000 A truncate 80`),
		// the quoted packet is not one that the error's receiver sent
		`eth router > node | ip router > node | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node | ip router > world | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node | ip gw > lb | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node | ip router > lb ttl 1 | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node | ip router > lb frag 7 off 0 mf | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node vlan 5 | ip router > lb | ` + narrow + ` | ip lb > world df | tcp 81 > 40000 A`,
		`eth router > node | ip router > lb | icmp echo id 1 seq 1 | len 64`,
	}
}

func xdpErrorsLeft4() []string {
	const narrow = `eth router > node | ip4 router > lb | icmp too-big mtu 1280 | ip4 lb > world `
	return []string{
		fmt.Sprintf(aboutReply, `icmp redirect host gateway node2`, `tcp 81 > 40000 A`),
		`eth router > node | ip4 router > lb opts 01010101 | icmp too-big mtu 1280 | ip4 lb > world | tcp 81 > 40000 A`,
		narrow + `opts 01010101 | tcp 81 > 40000 A`, narrow + `mf | tcp 81 > 40000 A`,
		narrow + `off 8 | tcp 81 > 40000 A`,
	}
}

// xdpTrimRows: where policies are enforced, errors quote no more than they need.
func xdpTrimRows() []row {
	var steps []step
	for _, n := range []int{56, 60, 75, 76, 77, 1000} {
		for _, kind := range []string{`icmp too-big mtu 1280`, `icmp unreachable port`} {
			steps = append(steps, atBoth(fmt.Sprintf(aboutReply, kind, fmt.Sprintf(`udp 81 > 40000 | len %d`, n)),
				fmt.Sprintf(becomesReply, kind+` quote 96`, fmt.Sprintf(`udp 8080 > 51000 | len %d`, n)))...)
		}
	}
	return []row{xdp(row{name: "trimmed", steps: append(flowsBegin(), steps...)})}
}

// xdpDirectErrorRows: the backend replies to the client directly, so that it must get the client's errors itself.
// first is the outcome of the first error: where requests are encapsulated, there is no path to the backend yet.
func xdpDirectErrorRows(first string) []row {
	steps := []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`, want: "FORWARD_WIRE"},
		{at: "from_wire eth0", in: fmt.Sprintf(aboutReply, `icmp time-exceeded`, `udp 81 > 40000`), want: first},
	}
	for _, kind := range errorKinds() {
		for _, l4 := range []struct{ lb, c string }{
			{`tcp 81 > 40000 A seq 5 | len 100`, `tcp 8080 > 40000 A seq 5 | len 100`},
			{`udp 81 > 40000 | "odd"`, `udp 8080 > 40000 | "odd"`},
		} {
			steps = append(steps, atBoth(fmt.Sprintf(aboutReply, kind, l4.lb), fmt.Sprintf(
				`eth node > node2 | ip router > c ttl 59 | %s | ip c > world ttl 3 df | %s`, kind, l4.c))...)
		}
	}
	return []row{xdp(row{name: "about replies", steps: steps})}
}

// xdpCrossErrorRows: errors that change their family are left to tc.
func xdpCrossErrorRows() []row {
	return across("about replies and requests", func(c, b string) []step {
		return append([]step{
			{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb | tcp 40000 > 89 S`,
				want: "FORWARD_RESOLVE"}}, passed(
			`eth router > node | `+c+` router > lb | icmp too-big mtu 1400 | `+c+` lb > world | tcp 89 > 40000 A`,
			`eth node2 > node | `+b+` node2 > node | icmp too-big mtu 1400 | `+b+` node > c | tcp 51000 > 8080 A`)...)
	})
}

// Whatever error comes, XDP either leaves it as it is or makes the packet of it that tc makes.
func TestXDPErrorsAreThoseOfTC(t *testing.T) {
	n := 20000
	if testing.Short() {
		n = 2000
	}
	for _, change := range [][]func(*Settings){{servicing, longTimes}, {servicing, policed, longTimes},
		{servicing, direct, longTimes}} {
		w := newWorld(t, settingsOf(change...), onlyPrograms("from_wire", "from_wire_xdp"))
		packettest.Both(t, func(t *testing.T, f packet.Family) {
			defer w.enter(t)()
			w.forget(t)
			receivesXDP(t, w)
			if w.settings.Policy != 0 {
				opens(t, w)
			}
			w.compareErrors(t, f, rand.New(rand.NewPCG(1, uint64(f))), n/6)
		})
	}
}

// compareErrors runs n errors with a few bytes changed at both hooks.
func (w *world) compareErrors(t *testing.T, f packet.Family, random *rand.Rand, n int) {
	seeds := w.errorSeeds(t, f)
	forwarded := 0
	for i := range n {
		if i%100 == 0 { // forwarding cache entries end after a second
			w.begin(t, f)
		}
		frame := spoil(random, seeds[random.IntN(len(seeds))])
		at := w.step(t, 0, step{at: xdpAt})
		ret, out, err := packettest.RunXDP(at.Prog, frame, at.Options.Ifindex)
		must(t, err)
		if ret == xdpPass {
			if !bytes.Equal(out, frame) {
				t.Fatalf("XDP passed and changed %s", packet.Format(frame, worldNames()))
			}
			continue
		}
		forwarded++
		at = w.step(t, 0, step{at: "from_wire eth0"})
		r, err := packettest.Run(at.Prog, frame, at.Options)
		must(t, err)
		if ret != xdpTX || r.Ret != actRedirect || !bytes.Equal(out, r.Out) {
			t.Fatalf("XDP returned %d, tc %d\nin  %s\nXDP %s\ntc  %s", ret, r.Ret, packet.Format(frame, worldNames()),
				packet.Format(out, worldNames()), packet.Format(r.Out, worldNames()))
		}
	}
	if forwarded < n/10 {
		t.Errorf("XDP forwarded %d of %d errors, want a tenth at least", forwarded, n)
	}
}

// begin has the flows begin that errors are about, or go on.
func (w *world) begin(t testing.TB, f packet.Family) {
	t.Helper()
	at := w.step(t, 0, step{at: "from_wire eth0"})
	for _, s := range append(flowsBegin(), step{in: fmt.Sprintf(aboutReply, `icmp time-exceeded`, `udp 81 > 40000`)}) {
		_, err := packettest.Run(at.Prog, packettest.Frame(t, f, worldNames(), s.in), at.Options)
		must(t, err)
	}
}

func (w *world) errorSeeds(t testing.TB, f packet.Family) (frames [][]byte) {
	t.Helper()
	for _, rows := range [][]row{xdpErrorRows(), xdpDirectErrorRows("")} {
		for _, r := range rows {
			for _, s := range r.steps {
				if s.at == xdpAt && s.want == "FORWARD_WIRE" && (r.only == 0 || r.only == f) {
					frames = append(frames, packettest.Frame(t, f, worldNames(), s.in))
				}
			}
		}
	}
	return frames
}

// A frame that ends before the error's quote does is left as it is, wherever it ends.
func TestXDPErrorsCut(t *testing.T) {
	w := newWorld(t, settingsOf(servicing, longTimes), onlyPrograms("from_wire", "from_wire_xdp"))
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		receivesXDP(t, w)
		in := fmt.Sprintf(aboutReply, `icmp too-big mtu 1280`, `tcp 81 > 40000 A seq 5`)
		frame := packettest.Frame(t, f, worldNames(), in)
		w.run(t, f, flowsBegin()...)
		for n := 14; n < len(frame); n++ {
			w.run(t, f, passed(strings.Replace(in, "seq 5", fmt.Sprintf("seq 5 truncate %d", n), 1))...)
		}
		w.run(t, f, atBoth(in, fmt.Sprintf(becomesReply, `icmp too-big mtu 1280`, `tcp 8080 > 51000 A seq 5`))...)
	})
}
