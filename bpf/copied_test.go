package bpf

import "testing"

// copies says that entries are being copied from other tables, for so many seconds.
func copies(seconds int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		now, err := readJiffies()
		must(t, err)
		must(t, w.EntriesCopiedUntil.Set(uint32(int(now)+seconds*int(w.settings.Hz))))
	}
}

// copiedTables are segments without an entry while entries are copied: they are sent again.
func copiedTables() []table {
	passes := func(at, in, want string) []step {
		return []step{{at: at, in: in, want: "DROP_ENTRY_COPIED", out: "=", before: copies(30)},
			{at: at, in: in, want: want, before: copies(-1)}}
	}
	at, reply := "from_wire eth0", `eth router > node | ip world > node | `
	return []table{
		{name: "copied, masquerade", settings: settingsOf(masquerading), rows: []row{
			{name: "a reply", steps: passes(at, reply+`tcp 80 > 50000 SA`, "FORWARD_STACK")},
			{name: "of a pod", steps: passes("from_pod linka", `eth a > gw | ip a > world | tcp 40000 > 80 A`,
				"FORWARD_WIRE")},
			{name: "a SYN", steps: []step{{at: at, in: reply + `tcp 80 > 50000 S`, want: "FORWARD_STACK",
				before: copies(30)}}},
			{name: "UDP", steps: []step{{at: at, in: reply + `udp 80 > 50000`, want: "FORWARD_STACK",
				before: copies(30)}}},
			{name: "another port", steps: []step{{at: at, in: reply + `tcp 80 > 22 A`, want: "FORWARD_STACK",
				before: copies(30)}}},
		}},
		{name: "copied, Services", settings: settingsOf(servicing, longTimes), rows: []row{
			{name: "a request", steps: passes(at, `eth router > node | ip world > node ttl 60 | tcp 40001 > 30080 A`,
				"FORWARD_POD")},
			{name: "of a pod", steps: passes("from_pod linka", `eth a > gw | ip a > vip | tcp 40000 > 80 A`,
				"FORWARD_POD")},
		}},
	}
}
