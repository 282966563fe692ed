package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// xdp is a row that is run where the device has a program of ours, as it needs to be: only then a veth has receive
// queues for XDP.
func xdp(r row) row {
	r.steps[0].before = receivesXDP
	return r
}

func receivesXDP(t testing.TB, w *world) {
	t.Helper()
	needsKernel(t, xdpTestRuns)
	for _, device := range []string{"eth0", "other0"} {
		l, err := link.AttachXDP(link.XDPOptions{Program: w.FromWireXDP, Interface: w.index[device],
			Flags: link.XDPDriverMode})
		must(t, err)
		t.Cleanup(func() { l.Close() })
	}
}

// known writes the maps by which XDP knows devices: those that take frames, whether frames leave by a map also where
// they arrived, and the wire of frames that arrive on a port.
func known(byMap uint32, takers []string, ports map[string]string) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		e := xdpEntries{wires: map[uint32]uint32{}, ports: map[DatapathXdpPort]uint32{}, mapPorts: len(ports) > 0}
		for _, name := range takers {
			index := uint32(w.index[name])
			e.wires[index] = index
		}
		for port, wire := range ports {
			e.ports[DatapathXdpPort{Ifindex: uint32(w.index[port])}] = uint32(w.index[wire])
		}
		knownEntries(t, w, byMap, e)
	}
}

func knownEntries(t testing.TB, w *world, byMap uint32, e xdpEntries) {
	t.Helper()
	write := func(byMap uint32, e xdpEntries) {
		must(t, errors.Join(replace(w.XdpWires, e.wires), replace(w.XdpPorts, e.ports), replace(w.XdpVids, e.vids),
			w.XdpByMap.Set(byMap), w.XdpMapPorts.Set(number(e.mapPorts))))
	}
	write(byMap, e)
	t.Cleanup(func() { write(0, xdpEntries{}) })
}

// cByOther moves c behind other0, which becomes a wire.
func cByOther(t testing.TB, w *world) {
	t.Helper()
	n := worldNames()
	index := w.index["other0"]
	must(t, w.Wires.Put(uint32(index), DatapathWire{Addr4: Addr(n["node"].IP4), Addr6: Addr(n["node"].IP6), Mtu: 1500}))
	t.Cleanup(func() { must(t, w.Wires.Delete(uint32(index))) })
	for _, a := range families(n["c"]) {
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: a.AsSlice(), HardwareAddr: n["stranger"].MAC,
			State: netlink.NUD_PERMANENT}))
		host := &netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen())), LinkIndex: index, Scope: netlink.SCOPE_LINK}
		w.route(t, host)
		t.Cleanup(func() {
			defer w.enter(t)()
			must(t, netlink.RouteDel(host))
		})
	}
	w.bump(t, 0)
}

// xdpKnown are packets in XDP of a flow that from_wire has begun: world asks lb, which c serves from node2.
func xdpKnown(name string, steps ...step) row {
	begin := []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth node2 > node | ip c > node | tcp 8080 > 51000 SA`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`, want: "FORWARD_WIRE"},
	}
	return xdp(row{name: name, steps: append(begin, steps...)})
}

// xdpBegins are first packets of flows in XDP, to a backend with a forwarding cache entry.
func xdpBegins(name string, steps ...step) row {
	const other = `eth router > node | ip world > lb | udp 40000 > 81`
	begin := []step{{at: "from_wire eth0", in: other, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: other, want: "FORWARD_WIRE"}}
	return xdp(row{name: name, steps: append(begin, steps...)})
}

func xdpRows() []row {
	const at = "from_wire_xdp eth0"
	const syn = `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S mss 1400`
	const ask, asked = `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A`,
		`eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 A`
	return append([]row{
		xdpKnown("there and back, tcp",
			step{at: at, in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 PA seq 2 | "hello"`,
				want:  "FORWARD_WIRE",
				out:   `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 PA seq 2 | "hello"`,
				after: translationsAre(2)},
			step{at: at, in: `eth node2 > node | ip c > node ttl 60 | tcp 8080 > 51000 A | len 1400`,
				want: "FORWARD_WIRE", out: `eth node > router | ip lb > world ttl 59 | tcp 81 > 40000 A | len 1400`},
		),
		xdpKnown("there and back, udp",
			step{at: at, in: `eth router > node | ip world > lb ttl 60 tos 0xb9 | udp 40000 > 81 | "odd"`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 59 tos 0xb9 | udp 51000 > 8080 | "odd"`},
			step{at: at, in: `eth node2 > node | ip c > node ttl 60 | udp 8080 > 51000 | len 1`, want: "FORWARD_WIRE",
				out: `eth node > router | ip lb > world ttl 59 | udp 81 > 40000 | len 1`},
		),
		only4(xdpKnown("without a checksum", step{at: at,
			in: `eth router > node | ip world > lb | udp 40000 > 81 nosum | "q" | pad 30`, want: "FORWARD_WIRE",
			out: `eth node > node2 | ip node > c ttl 63 | udp 51000 > 8080 nosum | "q" | pad 30`})),
		xdpBegins("a flow begins",
			step{at: at, in: syn, want: "FORWARD_WIRE",
				out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 S mss 1400`, after: translationsAre(2)},
			step{at: at, in: syn, want: "", out: "="},
			step{at: "from_wire eth0", in: syn, want: "FORWARD_WIRE",
				out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 S mss 1400`, after: translationsAre(2)},
			step{at: "from_wire eth0", in: `eth node2 > node | ip c > node | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE"},
			step{at: at, in: ask, want: "FORWARD_WIRE", out: asked},
			step{at: at, in: `eth node2 > node | ip c > node | tcp 8080 > 51000 A | len 20`, want: "FORWARD_WIRE",
				out: `eth node > router | ip lb > world ttl 63 | tcp 81 > 40000 A | len 20`},
		),
		xdpBegins("a flow begins by a node port", step{at: at,
			in: `eth router > node | ip world > node | tcp 40000 > 30081 S`, want: "FORWARD_WIRE",
			out: `eth node > node2 | ip node > c ttl 63 | tcp 51000 > 8080 S`}),
		xdpBegins("what doesn't begin here",
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 80 S`, want: "", out: "=",
				after: translationsAre(1)},
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 85 S`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 86 S`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world2 > lb | tcp 40000 > 87 S`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 89 S`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 81 A | pad 10`, want: "", out: "="},
			// its only port is taken
			step{at: at, in: `eth router > node | ip world > lb | udp 40001 > 81 | len 20`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > a | tcp 40000 > 81 S`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > node | tcp 40000 > 81 S`, want: "", out: "=",
				after: translationsAre(1)},
		),
	}, append(xdpRestRows(), xdpVLANRows()...)...)
}

// eightPorts leaves flows little choice: few have their first candidate.
func eightPorts(s *Settings) { s.LbPortMin, s.LbPortMax = 51000, 51007 }

// portsRows are flows of one client that use all NAT ports: XDP finds each, whatever port it has.
func portsRows() []row {
	const flows = 8
	var begin, known []step
	for i := range flows {
		in := fmt.Sprintf(`eth router > node | ip world > lb | udp %d > 81`, 40000+i)
		begin = append(begin, step{at: "from_wire eth0", in: in, want: map[bool]string{true: "FORWARD_RESOLVE",
			false: "FORWARD_WIRE"}[i == 0]})
		known = append(known, step{at: xdpAt, in: in, want: "FORWARD_WIRE"})
	}
	known[flows-1].after = translationsAre(flows)
	return []row{xdp(row{name: "flows with any port", steps: append(begin, known...)})}
}

func xdpRestRows() []row {
	const at = "from_wire_xdp eth0"
	const syn = `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S mss 1400`
	const ask, asked = `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A`,
		`eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 A`
	return []row{
		xdpKnown("back by the map", step{at: at, in: ask, want: "", out: "=", before: known(1, nil, nil)},
			step{at: at, in: ask, want: "FORWARD_WIRE", ret: xdpRedirect, out: asked,
				before: known(1, []string{"eth0"}, nil)}),
		xdpKnown("by a port of the bond", step{at: "from_wire_xdp other0", in: ask, want: "", out: "="},
			step{at: "from_wire_xdp other0", in: ask, want: "FORWARD_WIRE", out: asked,
				before: known(0, nil, map[string]string{"other0": "eth0"})}),
		xdpKnown("out of another wire",
			step{at: "from_wire eth0", in: ask, want: "FORWARD_RESOLVE", before: cByOther},
			step{at: at, in: ask, want: "", out: "="},
			step{at: at, in: ask, want: "FORWARD_WIRE", ret: xdpRedirect, before: known(0, []string{"other0"}, nil),
				out: `eth 02:00:00:00:00:70 > stranger | ip node > c ttl 59 | tcp 51000 > 8080 A`}),
		xdpKnown("what from_wire must do",
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 81 S | pad 10`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb ttl 1 | tcp 40000 > 81 A | pad 10`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | tcp 40000 > 81 A | len 1500`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | udp 40001 > 81 | len 20`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | udp 40000 > 80 | len 20`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb frag 7 off 0 mf | udp 40000 > 81 | len 32`, want: "",
				out: "="},
			step{at: at, in: `eth router > node | ip world > node | tcp 40000 > 22 A | len 20`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | sctp 40000 > 81 init`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip c > node | tcp 8081 > 51000 A`, want: "", out: "="},
			step{at: at, in: `eth router > node | ip world > lb | icmp echo id 1 seq 1 | len 40`, want: "", out: "="},
		),
		only6(xdpBegins("IPv4-mapped addresses", step{at: at, out: "=", after: translationsAre(1),
			in: `eth router > node | ip6 world > ::ffff:203.0.113.50 | udp 40000 > 81`})),
		xdpKnown("the backend is gone", step{at: at,
			in: `eth router > node | ip world > lb | tcp 40000 > 81 A | pad 10`, want: "", out: "=",
			before: backendsGo}),
		xdpKnown("the way is not known any more", step{at: at,
			in: `eth router > node | ip world > lb | tcp 40000 > 81 A | pad 10`, want: "", out: "=",
			before: func(t testing.TB, w *world) { w.bump(t, 0) }}),
	}
}

// liveXDPRows are one flow: tc begins it, in both directions, then XDP has it.
func liveXDPRows() []row {
	ask, answer := `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | len 64`,
		`eth node2 > node | ip c > node ttl 60 | udp 8080 > 51000 | len 64`
	asked, answered := `eth node > node2 | ip node > c ttl 59 | udp 51000 > 8080 | len 64`,
		`eth node > router | ip lb > world ttl 59 | udp 81 > 40000 | len 64`
	return []row{
		one("begins", "from_wire eth0", ask, "FORWARD_RESOLVE", asked),
		one("is answered", "from_wire eth0", answer, "FORWARD_RESOLVE", answered),
		one("goes on", "from_wire_xdp eth0", ask, "FORWARD_WIRE", asked),
		one("is answered again", "from_wire_xdp eth0", answer, "FORWARD_WIRE", answered),
		one("another begins", "from_wire_xdp eth0",
			`eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S | pad 10`, "FORWARD_WIRE",
			`eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 S | pad 10`),
	}
}

// attachXDP attaches to eth0, whose other end must then be able to take frames: it is if it has a program, too.
func (w *world) attachXDP(a *Attacher) error {
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		return err
	}
	defer pass.Close()
	if w.peerXDP, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: w.index["eth0p"],
		Flags: link.XDPDriverMode}); err != nil {
		return err
	}
	for range 2 { // the second finds the first one's pin
		if state := a.AttachXDP(XDPDevice{Name: "eth0", Index: w.index["eth0"]}, XDPNative); state.Why != "" ||
			a.XDP("eth0").Mode != XDPNative {
			return errors.New(state.Why)
		}
	}
	return nil
}

// A device says why it has no XDP; and modes follow each other without a rest.
func TestAttachXDP(t *testing.T) {
	w := newWorld(t, settingsOf(servicing), nil)
	w.withPins(t, func(dir string) error {
		a := newAttacher(&Datapath{Objects: w.Objects, options: Options{Dir: dir}}, false)
		return w.attachModes(a, filepath.Join(dir, "links"))
	})
}

func (w *world) attachModes(a *Attacher, pins string) error {
	for _, s := range []struct {
		device     string
		mode, want XDPMode
		why        string
		pins       int
	}{
		{"vx0", XDPNative, XDPNone, "its driver has none", 0},
		{"vx0", XDPGeneric, XDPGeneric, "", 1},
		{"vx0", XDPNone, XDPNone, "", 0},
		{"other0", XDPNative, XDPNative, "", 1},
		{"other0", XDPGeneric, XDPGeneric, "", 1},
		{"other0", XDPNative, XDPNative, "", 1},
	} {
		got := a.AttachXDP(XDPDevice{Name: s.device, Index: w.index[s.device]}, s.mode)
		list, err := os.ReadDir(pins)
		if err != nil || len(list) != s.pins || got.Mode != s.want || !strings.Contains(got.Why, s.why) ||
			(s.why == "") != (got.Why == "") {
			return fmt.Errorf("%s %q: %+v, %d pins, %v; want %q %q, %d", s.device, s.mode, got, len(list), err, s.want,
				s.why, s.pins)
		}
	}
	return nil
}
