package bpf

import (
	"fmt"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// The table of paths has no list of rows that collide: where packets go to neighbouring addresses, as in a cluster they
// do, decisions must still be kept.
func TestNeighbouringDestinationsAreKept(t *testing.T) {
	w := newWorld(t, settingsOf(), onlyForwarding)
	const destinations = 64
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		for name, prefix := range map[string][2]string{"hosts": {"198.51.100.", "2001:db8::1:"},
			"pods": {"10.2.0.", "fd00:2::"}} {
			w.forget(t)
			var had [len(hooks)]outcomeCounts
			for range 2 {
				had = w.counters(t)
				for i := range destinations {
					to := fmt.Sprintf("%s%d", prefix[(f-4)/2], 100+i)
					in := packettest.Frame(t, f, worldNames(), `eth a > gw | ip a > `+to+` | udp 1 > 2`)
					_, err := packettest.Run(w.FromPod, in, packettest.Options{Ifindex: uint32(w.index["linka"])})
					must(t, err)
				}
			}
			hook := DatapathHookHOOK_FROM_POD
			kept := w.counters(t)[hook][DatapathOutcomeFORWARD_WIRE] - had[hook][DatapathOutcomeFORWARD_WIRE]
			if kept < destinations*9/10 {
				t.Errorf("%s: the second packets to %d of %d neighbouring addresses used the forwarding cache",
					name, kept,
					destinations)
			}
		}
	})
}
