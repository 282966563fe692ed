package bpf

import "testing"

// shared gives a table of flows room for a hundred entries, of which pod a may have no more than are left for others.
func shared(s *Settings) { s.FlowEntries, s.NatEntryMax = 100, 100 }

// has makes the datapath believe that pod a (slot 2) has so many entries, of so many of all endpoints, in each table.
func has(entries, all uint32, until int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for kind := range uint32(2) {
			must(t, w.Shares.Put(kind*4096+2, entries))
			must(t, w.Shares.Put(kind*4096, all))
		}
		now, err := readJiffies()
		must(t, err)
		must(t, w.SharesUntil.Set(uint32(int(now)+until*int(w.settings.Hz))))
	}
}

func shareTables() []table {
	a, b := `eth a > gw | ip a > world | udp 40000 > 53`, `eth b > gwb | ip b > world | udp 40000 > 54`
	refused := row{name: "an endpoint with its share", steps: []step{
		{at: "from_pod linka", in: a, want: "DROP_FLOW_LIMIT", out: "=", before: has(40, 60, 30), after: flowsAre(0)},
		{at: "from_pod linkb", in: b, want: "FORWARD_RESOLVE", after: flowsAre(1)},
		{at: "from_pod linka", in: a, want: "FORWARD_WIRE", before: has(39, 60, 30), after: flowsAre(2)},
		{at: "from_pod linka", in: a, want: "FORWARD_WIRE", before: has(40, 60, 30), after: flowsAre(2)},
	}}
	dead := row{name: "no agent counts", steps: []step{
		{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", before: has(99, 99, -1), after: flowsAre(1)},
	}}
	counted := row{name: "entries are counted", steps: []step{
		{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", before: has(0, 0, 30), after: sharesAre(0, 1, 1)},
		{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD",
			after: sharesAre(0, 1, 1)},
		{at: "from_pod linkb", in: b, want: "FORWARD_RESOLVE", after: sharesAre(0, 1, 2)},
	}}
	recorded := row{name: "a flow that is only recorded goes on without a row", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD", before: has(40, 60, 30),
			after: flowsAre(0)},
	}}
	service := row{name: "a Service's client with its share", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`, want: "DROP_FLOW_LIMIT", out: "=",
			before: has(40, 60, 30), after: translationsAre(0)},
		{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30080 S`,
			want: "FORWARD_POD", after: translationsAre(1)},
		{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`, want: "FORWARD_POD",
			before: has(39, 60, 30), after: sharesAre(1, 40, 61)},
	}}
	return []table{
		{name: "shares, masquerade", settings: settingsOf(masquerading, shared), rows: []row{refused, dead, counted}},
		{name: "shares, tracking", settings: settingsOf(tracking, shared), rows: []row{recorded}},
		{name: "shares, Services", settings: settingsOf(servicing, shared), rows: []row{service}},
	}
}

func sharesAre(kind, own, all uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var gotOwn, gotAll uint32
		must(t, w.Shares.Lookup(kind*4096+2, &gotOwn))
		must(t, w.Shares.Lookup(kind*4096, &gotAll))
		if gotOwn != own || gotAll != all {
			t.Errorf("%d entries of pod a's, %d of all, want %d and %d", gotOwn, gotAll, own, all)
		}
	}
}
