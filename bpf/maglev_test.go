package bpf

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// placeTo is the first port of backends that are told apart by it.
const placeTo = 9000

func addressOf(f packet.Family, name string) DatapathAddr {
	return Addr(families(worldNames()[name])[map[packet.Family]int{packet.IPv4: 0, packet.IPv6: 1}[f]])
}

// chosen are the places of a set that flows from many ports to the Service get.
func (w *world) chosen(t testing.TB, f packet.Family, set DatapathBackendSet) map[int]int {
	t.Helper()
	w.forget(t)
	key := DatapathFrontendKey{Addr: addressOf(f, "lb"), Port: be16(portB), Proto: unix.IPPROTO_UDP}
	row := DatapathFrontend{Service: 1, Set: [2]DatapathBackendSet{set, set}}
	row.Flags = uint32(DatapathFrontendFlagFRONTEND_EXTERNAL | DatapathFrontendFlagFRONTEND_INTERNAL |
		DatapathFrontendFlagFRONTEND_MAGLEV)
	must(t, w.Frontends.Put(key, row))
	places := map[int]int{}
	for sport := 40000; sport < 40300; sport++ {
		frame := packettest.Frame(t, f, worldNames(), fmt.Sprintf(`eth a > gw | ip a > lb | udp %d > %d`, sport, portB))
		r, err := packettest.Run(w.FromPod, frame, packettest.Options{Ifindex: uint32(w.index["linka"])})
		must(t, err)
		if r.Ret != actRedirect {
			t.Fatalf("port %d: not forwarded: %d", sport, r.Ret)
		}
		l4 := map[packet.Family]int{packet.IPv4: 14 + 20, packet.IPv6: 14 + 40}[f]
		places[sport] = int(binary.BigEndian.Uint16(r.Out[l4+2:])) - placeTo
	}
	return places
}

// Flows get the same place of a Maglev table in its own map, whose rows hold no power of two of them, as of one that
// other sets would have; and places of all rows.
func TestMaglevTables(t *testing.T) {
	const id, size = 0x7000, 1021
	w := newWorld(t, settingsOf(servicing), onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		choices, table := make([]DatapathBackendSlotsRow, size/32+1), make([]DatapathMaglevRow, size/496+1)
		for place := range uint32(size) {
			number := id + place
			must(t, w.Backends.Put(number, DatapathBackend{Addr: addressOf(f, "b"), Port: be16(placeTo + uint16(place)),
				Proto: unix.IPPROTO_UDP}))
			choices[place/32].Backend[place%32], table[place/496].Backend[place%496] = number, number
		}
		for i, row := range choices {
			must(t, w.BackendSlots.Put(DatapathBackendSlotsKey{Set: id, Row: uint32(i)}, row))
		}
		flag := uint32(DatapathBackendSetFlagSET_TABLE)
		for i, row := range table {
			must(t, w.MaglevTables.Put(DatapathBackendSlotsKey{Set: id | flag, Row: uint32(i)}, row))
		}
		want, got, rows := w.chosen(t, f, DatapathBackendSet{Id: id, Count: size}), w.chosen(t, f,
			DatapathBackendSet{Id: id | flag, Count: size}), map[int]bool{}
		for sport, place := range want {
			if got[sport] != place {
				t.Errorf("port %d: place %d, want %d", sport, got[sport], place)
			}
			rows[place/496] = true
		}
		if len(rows) != 3 {
			t.Errorf("places of rows %v only", rows)
		}
	})
}
