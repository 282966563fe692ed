package bpf

import (
	"net/netip"
	"slices"
	"testing"
)

// unroutedTables are new flows of Services whose source no router forwards, or whose backend has no route.
func unroutedTables() []table {
	return []table{
		{name: "services, unrouted", settings: settingsOf(servicing), rows: unroutedRows()},
		{name: "services, unrouted, direct", settings: settingsOf(servicing, direct), rows: unroutedRows()},
		{name: "services, unrouted, legacy", settings: settingsOf(servicing, legacy), rows: unroutedRows()},
	}
}

func unroutedRows() []row {
	at, valid := "from_wire eth0", `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S`
	// Senders share the decision where a backend is: it must not be that of a source for which the kernel has no route.
	martian := func(name, source string) row {
		return row{name: name, steps: []step{
			{at: at, in: `eth router > node | ` + source + ` > lb ttl 60 | tcp 40000 > 81 S`, want: "DROP_MARTIAN",
				out: "=", after: translationsAre(0)},
			{at: at, in: valid, want: "FORWARD_WIRE", after: translationsAre(1)},
		}}
	}
	return []row{
		only6(martian("link-local source", "ip6 fe80::7")),
		only6(martian("loopback source", "ip6 ::1")),
		only4(martian("loopback source", "ip4 127.0.0.7")),
		{name: "no route to the backend's node", steps: []step{
			{at: at, in: valid, want: "DROP_NO_ROUTE REPLY_ICMP", before: backendMoves("c", "lost"),
				after: translationsAre(0)},
			{at: at, in: valid, want: "FORWARD_RESOLVE", before: backendMoves("lost", "c"), after: translationsAre(1)},
		}},
	}
}

// backendMoves gives the backends with one address another one.
func backendMoves(from, to string) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		n := worldNames()
		moved := map[uint32]DatapathBackend{}
		must(t, Each(w.Backends, func(id *uint32, b *DatapathBackend) bool {
			i := slices.IndexFunc(families(n[from]), func(a netip.Addr) bool { return b.Addr == Addr(a) })
			if i >= 0 {
				changed := *b
				changed.Addr = Addr(families(n[to])[i])
				moved[*id] = changed
			}
			return true
		}))
		for id, b := range moved {
			must(t, w.Backends.Put(id, b))
		}
		w.bump(t, 0)
	}
}
