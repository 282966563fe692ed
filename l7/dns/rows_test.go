package dns

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"myelin/l7/config"
)

// countedPuts is a map that counts what is written to it.
type countedPuts struct {
	*memory
	puts atomic.Int64
}

func (m *countedPuts) Put(slot uint16, a netip.Addr, e Entry) error {
	m.puts.Add(1)
	return m.memory.Put(slot, a, e)
}

// TestRowsOfPattern: thousands of addresses of one pattern are one row each with one selector, so that a flow costs one
// lookup in the map and one of the selector's verdict however many addresses and patterns there are. An address is
// written once, not with each answer.
func TestRowsOfPattern(t *testing.T) {
	const names, perName = 1000, 5
	w := newWorld(t, "**.amazonaws.com")
	for i := range 500 { // patterns of other names cost nothing
		one := config.Selector{Number: uint32(100 + i), Names: patterns(fmt.Sprintf("*.zone%d.io", i))}
		w.config.Selectors = append(w.config.Selectors, one)
		w.config.Endpoints[0].Selectors = append(w.config.Endpoints[0].Selectors, one.Number)
	}
	m := &countedPuts{memory: w.names}
	w.start(m)
	for range 3 {
		for i := range names {
			name := fmt.Sprintf("n%d.s3.amazonaws.com", i)
			var records []string
			for j := range perName {
				n := i*perName + j
				records = append(records, fmt.Sprintf("%s 60 A 198.18.%d.%d", name, n>>8, n&255))
			}
			w.ask(podSlot, name+" A", records...)
		}
	}
	if rows := w.names.Len(); rows != names*perName {
		t.Errorf("%d rows, want %d", rows, names*perName)
	}
	if puts := m.puts.Load(); puts != names*perName {
		t.Errorf("rows were written %d times, want %d", puts, names*perName)
	}
	for n := range names * perName {
		a := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		if e, ok := w.names.Get(podSlot, a); !ok || len(e.Selectors) != 1 {
			t.Fatalf("%s has the selectors %v, want one", a, e.Selectors)
		}
	}
}
