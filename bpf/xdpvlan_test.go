package bpf

import "testing"

// tagged makes frames with the VIDs arrive on eth0 as frames of the wire eth0, whose own frames have the tag `vid`.
func tagged(vid uint32, arrive ...uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		wire := uint32(w.index["eth0"])
		e := xdpEntries{ports: map[DatapathXdpPort]uint32{}, vids: map[uint32]uint32{wire: vid}, mapPorts: true}
		if vid == 0 {
			delete(e.vids, wire)
		}
		for _, id := range arrive {
			e.ports[DatapathXdpPort{Ifindex: wire, Vid: id}] = wire
		}
		knownEntries(t, w, 0, e)
	}
}

// xdpVLANRows are frames with tags, in a flow that from_wire has begun.
func xdpVLANRows() []row {
	const at = "from_wire_xdp eth0"
	const ask, asked = `| ip world > lb ttl 60 | tcp 40000 > 81 A | len 40`,
		`| ip node > c ttl 59 | tcp 51000 > 8080 A | len 40`
	const in, out = `eth router > node `, `eth node > node2 `
	const reply, replied = `| ip c > node ttl 60 | tcp 8080 > 51000 A | len 40`,
		`| ip lb > world ttl 59 | tcp 81 > 40000 A | len 40`
	return []row{
		xdpKnown("a VLAN",
			step{at: at, in: in + `| vlan 5 ` + ask, want: "", out: "="},
			step{at: at, in: in + `| vlan 5 ` + ask, want: "FORWARD_WIRE", out: out + `| vlan 5 ` + asked,
				before: tagged(5, 5)},
			step{at: at, in: `eth node2 > node | vlan 5 ` + reply, want: "FORWARD_WIRE",
				out: `eth node > router | vlan 5 ` + replied},
			step{at: at, in: in + `| vlan 6 ` + ask, want: "", out: "="},
			step{at: at, in: in + ask, want: "", out: "="},
			step{at: at, in: in + `| vlan 5 | vlan 5 ` + ask, want: "", out: "="},
			step{at: at, in: in + `| qinq 5 ` + ask, want: "", out: "="},
			step{at: at, in: in + `| vlan 5 | ip world > a | tcp 40000 > 80 A | len 40`, want: "", out: "="},
		),
		xdpBegins("a flow begins in a VLAN",
			step{at: at, in: in + `| vlan 5 | ip world > lb ttl 60 | tcp 40000 > 81 S mss 1400`, want: "FORWARD_WIRE",
				out: out + `| vlan 5 | ip node > c ttl 59 | tcp 51000 > 8080 S mss 1400`, before: tagged(5, 5)}),
		xdpKnown("from one VLAN to another", step{at: at, in: in + `| vlan 5 ` + ask, want: "FORWARD_WIRE",
			out: out + `| vlan 7 ` + asked, before: tagged(7, 5)}),
		xdpKnown("from a VLAN to none", step{at: at, in: in + `| vlan 5 ` + ask, want: "FORWARD_WIRE",
			out: out + asked, before: tagged(0, 5)}),
		xdpKnown("a priority tag belongs to the device itself",
			step{at: at, in: in + `| vlan 0 ` + ask, want: "FORWARD_WIRE", out: out + asked, before: tagged(0, 0)},
			step{at: at, in: in + ask, want: "FORWARD_WIRE", out: out + asked}),
	}
}
