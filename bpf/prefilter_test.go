package bpf

import (
	"net/netip"
	"testing"
)

func prefiltering(s *Settings) { s.Prefilter = 1 }

func prefilterTables() []table {
	return []table{
		{name: "prefilter", settings: settingsOf(prefiltering, longTimes), rows: prefilterRows()},
		{name: "prefilter, Services", settings: settingsOf(prefiltering, servicing, longTimes), rows: prefilterRows()},
		{name: "prefilter, tunnel", settings: settingsOf(prefiltering, tunnel4, longTimes), rows: []row{
			{name: "what the tunnel brings is the cluster's", steps: []step{
				{at: "from_wire vx0", in: `eth node2 > node | ip c > a | udp 1 > 2`, want: "FORWARD_POD",
					before: refusing("c", true)},
			}},
		}},
	}
}

// refusing puts the prefixes around the address on list 7, or the address alone; but for the addresses after.
func refusing(name string, alone bool, but ...string) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		put := func(a netip.Addr, list uint32) {
			must(t, w.Denylist.Put(Addr(a), list))
			t.Cleanup(func() { must(t, w.Denylist.Delete(Addr(a))) })
		}
		for _, a := range families(worldNames()[name]) {
			if alone {
				put(a, 7)
				continue
			}
			must(t, w.DenylistPrefixes.Put(Prefix(around(a)), uint32(7)))
			t.Cleanup(func() { must(t, w.DenylistPrefixes.Delete(Prefix(around(a)))) })
		}
		for _, name := range but {
			for _, a := range families(worldNames()[name]) {
				put(a, 0)
			}
		}
	}
}

// wiresHaveXDP leaves it to XDP.
func wiresHaveXDP(t testing.TB, w *world) {
	must(t, w.Prefiltered.Set(uint32(1)))
	t.Cleanup(func() { must(t, w.Prefiltered.Set(uint32(0))) })
}

func prefilterRows() []row {
	const from = `eth router > node | `
	in := func(at, packet, want string) step { return step{at: at, in: packet, want: want, out: "="} }
	udp := from + `ip world > a | udp 1 > 2`
	rows := []row{
		{name: "an address, by tc", steps: []step{
			{at: "from_wire eth0", in: udp, want: "DROP_PREFILTER", out: "=", before: refusing("world", true)},
			in("from_wire eth0", from+`ip world > node | tcp 1 > 22 S`, "DROP_PREFILTER"),
			{at: "from_wire eth0", in: from + `ip world2 > a | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: udp, want: "FORWARD_POD", before: wiresHaveXDP},
		}},
		{name: "a prefix, but for an address in it", steps: []step{
			{at: "from_wire eth0", in: udp, want: "DROP_PREFILTER", out: "=",
				before: refusing("world", false, "world2")},
			{at: "from_wire eth0", in: from + `ip world2 > a | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: from + `ip stranger > a | udp 1 > 2`, want: "FORWARD_POD"},
		}},
		{name: "what pods send goes out", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 1 > 2`, want: "FORWARD_RESOLVE",
				before: refusing("world", true)},
		}},
	}
	const xdpAt = "from_wire_xdp eth0"
	steps := []step{
		in(xdpAt, udp, "DROP_PREFILTER"),
		in(xdpAt, from+`ip world > node frag 7 off 0 mf | udp 1 > 2 | len 32`, "DROP_PREFILTER"),
		in(xdpAt, from+`ip world > node | icmp echo id 1 seq 1`, "DROP_PREFILTER"),
		in(xdpAt, from+`ip world2 > a | udp 1 > 2`, ""),
	}
	steps[0].before = refusing("world", true)
	prefix := []step{in(xdpAt, udp, "DROP_PREFILTER"), in(xdpAt, from+`ip stranger > a | udp 1 > 2`, "")}
	prefix[0].before = refusing("world", false)
	rows = append(rows, row{name: "in XDP", steps: steps}, row{name: "a prefix in XDP", steps: prefix})
	return rows
}
