package bpf

import (
	"net/netip"
	"strconv"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// The key that Go computes is the one under which the datapath keeps a flow, from either end.
func TestFlowKey(t *testing.T) {
	w := newWorld(t, settingsOf(tracking), onlyForwarding)
	n := worldNames()
	for _, ports := range [][2]uint16{{40000, 80}, {80, 40000}, {7, 7}} {
		packettest.Both(t, func(t *testing.T, f packet.Family) {
			defer w.enter(t)()
			w.forget(t)
			udp := " | udp " + strconv.Itoa(int(ports[0])) + " > " + strconv.Itoa(int(ports[1]))
			w.run(t, f, step{at: "from_pod linka", in: `eth a > gw | ip a > b` + udp, want: "FORWARD_POD"})
			a, b := netip.AddrPortFrom(n["a"].IP4, ports[0]), netip.AddrPortFrom(n["b"].IP4, ports[1])
			if f == packet.IPv6 {
				a, b = netip.AddrPortFrom(n["a"].IP6, ports[0]), netip.AddrPortFrom(n["b"].IP6, ports[1])
			}
			for _, ends := range [][2]netip.AddrPort{{a, b}, {b, a}} {
				var row DatapathFlow
				key, side := FlowKey(ends[0], ends[1], protoUDP)
				must(t, w.Flows.Lookup(key, &row))
				if opened := side == int(row.Origin); opened != (ends[0] == a) {
					t.Errorf("%v: side %d, origin %d", ends, side, row.Origin)
				}
			}
		})
	}
}

const protoUDP = 17
