package bpf

import (
	"testing"

	"github.com/vishvananda/netlink"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// A packet's life over two nodes: each step gets what the one before left.
//
//	a --from_pod-- node --eth0-- ... --eth0-- node2 --from_wire-- c
//
// The second node is a world with names of its own: it is `node` there, and the first one `node2`.

// mirror makes a world into the second node, which has pod c behind linka, and a behind the wire.
func (w *world) mirror(t testing.TB) {
	t.Helper()
	defer w.enter(t)()
	n := worldNames()
	for _, name := range []string{"a", "b"} {
		for _, addr := range families(n[name]) {
			must(t, w.Endpoints.Delete(Addr(addr)))
		}
	}
	index := uint32(w.index["linka"])
	pod := DatapathEndpoint{Ifindex: index, Slot: 9, PodMac: MAC(mac(0x0c)), LinkMac: MAC(mac(0x1c))}
	must(t, w.PodLinks.Put(index, DatapathPodLink{Addr4: Addr(n["c"].IP4), Addr6: Addr(n["c"].IP6), Endpoint: pod}))
	for i, addr := range families(n["c"]) {
		must(t, w.Endpoints.Put(Addr(addr), pod))
		toA := around(families(n["a"])[i])
		prefix := DatapathPrefix{}
		must(t, w.Prefixes.Lookup(Prefix(around(addr)), &prefix))
		must(t, w.Prefixes.Put(Prefix(toA), prefix))
		w.route(t, &netlink.Route{Dst: ipNet(toA), Gw: families(n["node2"])[i].AsSlice(), LinkIndex: w.index["eth0"]})
	}
	w.bump(t, 0)
}

// stage is a step in one of the worlds.
type stage struct {
	*world
	step
}

func live(t *testing.T, f packet.Family, stages ...stage) {
	t.Helper()
	var r packettest.Result
	for _, s := range stages {
		if s.in == "" {
			s.in = hexFrame(r.Out)
		}
		func() {
			defer s.enter(t)()
			r = s.run(t, f, s.step)
		}()
	}
}

// otherGateway are the settings of the second node, whose pods have a gateway of their own.
func otherGateway(s Settings) Settings {
	n := worldNames()
	s.Gateway4, s.Gateway6 = Addr(n["gwc"].IP4), Addr(n["gwc"].IP6)
	return s
}

func TestLifeOverTwoNodes(t *testing.T) {
	for _, mode := range []struct {
		name     string
		settings Settings
		wire     string
		sent     string // how the packet leaves the first node
		link     string
	}{
		{"native", settingsOf(), "eth0", "FORWARD_RESOLVE", "eth node > node2"},
		{"native, tracking, masquerading", settingsOf(tracking, masquerading), "eth0", "FORWARD_RESOLVE",
			"eth node > node2"},
		{"tunnel", settingsOf(tunnel4), "vx0", "FORWARD_TUNNEL", "eth none > none"},
		{"tunnel, tracking", settingsOf(tunnel6, tracking), "vx0", "FORWARD_TUNNEL", "eth none > none"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			one, two := newWorld(t, mode.settings, onlyForwarding), newWorld(t, otherGateway(mode.settings),
				onlyForwarding)
			two.mirror(t)
			packettest.Both(t, func(t *testing.T, f packet.Family) {
				in := "from_wire " + mode.wire
				c, gwc := "02:00:00:00:00:0c", "02:00:00:00:00:1c"
				live(t, f,
					stage{one, step{at: "from_pod linka",
						in: `eth a > gw | ip a > c ttl 64 | tcp 40000 > 80 S seq 1 | "hi"`, want: mode.sent,
						out: mode.link + ` | ip a > c ttl 63 | tcp 40000 > 80 S seq 1 | "hi"`}},
					stage{two, step{at: in, want: "FORWARD_POD",
						out: `eth ` + gwc + ` > ` + c + ` | ip a > c ttl 62 | tcp 40000 > 80 S seq 1 | "hi"`}},
					stage{two, step{at: "from_pod linka",
						in: `eth ` + c + ` > ` + gwc + ` | ip c > a ttl 64 | tcp 80 > 40000 SA`, want: mode.sent,
						out: mode.link + ` | ip c > a ttl 63 | tcp 80 > 40000 SA`}},
					stage{one, step{at: in, want: "FORWARD_POD",
						out: `eth gw > a | ip c > a ttl 62 | tcp 80 > 40000 SA`}},
				)
				// The last hop is the second node: its error comes back to a as one about what a sent.
				if mode.wire == "eth0" {
					live(t, f,
						stage{one, step{at: "from_pod linka", in: `eth a > gw | ip a > c ttl 2 | udp 1 > 2`,
							want: "FORWARD_WIRE", out: mode.link + ` | ip a > c ttl 1 | udp 1 > 2`}},
						stage{two, step{at: in, want: "DROP_TTL REPLY_ICMP",
							out: `eth node2 > node | ip gwc > a df | icmp time-exceeded | ` +
								`ip a > c ttl 1 | udp 1 > 2`}},
						stage{one, step{at: in, want: "FORWARD_POD",
							out: `eth gw > a | ip gwc > a ttl 63 df | icmp time-exceeded | ` +
								`ip a > c ttl 1 | udp 1 > 2`}},
					)
				}
			})
		})
	}
}

// A masqueraded connection of two pods to the same place, to its end, by way of a router that sends an error.
func TestLifeToTheWorld(t *testing.T) {
	s := settingsOf(masquerading)
	s.NatPortMin, s.NatPortMax = 50000, 50999
	w := newWorld(t, s, onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		portA := w.natPort(t, f, "linka", `eth a > gw | ip a > world | tcp 40000 > 80 S`)
		portB := w.natPort(t, f, "linkb", `eth b > gwb | ip b > world | tcp 40000 > 80 S`)
		if portA == portB {
			t.Fatalf("both pods have port %s", portA)
		}
		w.run(t, f,
			step{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 80 > ` + portA + ` SA`,
				want: "FORWARD_POD", out: `eth gw > a | ip world > a ttl 63 | tcp 80 > 40000 SA`},
			step{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 80 > ` + portB + ` SA`,
				want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 63 | tcp 80 > 40000 SA`},
			step{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 80 A`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | tcp ` + portA + ` > 80 A`},
			step{at: "from_pod linkb", in: `eth b > gwb | ip b > world | tcp 40000 > 80 FA`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | tcp ` + portB + ` > 80 FA`},
			step{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 80 > ` + portB + ` FA`,
				want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 63 | tcp 80 > 40000 FA`, after: flowsAre(2)},
			step{at: "from_wire eth0",
				in: `eth router > node | ip router > node | icmp time-exceeded quote +8 | ` +
					`ip node > world ttl 1 | tcp ` + portA + ` > 80 A`, want: "FORWARD_POD",
				out: `eth gw > a | ip router > a ttl 63 | icmp time-exceeded quote +8 | ip a > world ttl 1 | tcp ` +
					`40000 > 80 A`},
		)
	})
}
