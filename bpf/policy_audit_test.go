package bpf

import "testing"

// unknown takes the identity of a name's addresses away until the row ends, as if the node did not know the pod yet.
func unknown(name string) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for _, a := range families(worldNames()[name]) {
			must(t, w.Peers.Put(Addr(a), uint32(0)))
		}
		must(t, (&Epochs{Map: w.Epochs}).Move())
		t.Cleanup(func() { knows(name, identities()[name])(t, w) })
	}
}

// auditUnknownRows are about peers that the node does not know yet, and about segments of no connection, where one end
// or both only report.
func auditUnknownRows() []row {
	const tcp = 6
	to := func(port string) string { return `eth a > gw | ip a > b | tcp 40000 > ` + port }
	audited, refused := "FORWARD_AUDIT FORWARD_POD", "DROP_POLICY_PEER_UNKNOWN"
	rows := []row{
		{name: "audited, an unknown peer", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: audited, after: knows("a", identities()["a"]),
				before: all(isolates(slotB, ingress, allows("a", tcp, 80)), audits(slotB), unknown("a"))},
			{at: "from_pod linka", in: to("81 S"), want: audited},
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD"},
		}},
		{name: "audited with an unknown peer at the sender, enforced at the receiver", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: audited,
				before: all(isolates(slotA, egress), audits(slotA), isolates(slotB, ingress, allows("a", tcp, 80)),
					unknown("b"))},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_pod linka", in: to("82 S"), want: refused, out: "=", before: unknown("a")},
		}},
		{name: "enforced at the sender, audited with an unknown peer at the receiver", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: audited,
				before: all(isolates(slotA, egress, allows("b", tcp, 80)), isolates(slotB, ingress), audits(slotB),
					unknown("a"))},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_pod linka", in: to("80 S"), want: refused, out: "=", before: unknown("b")},
		}},
		{name: "audited with unknown peers at both ends", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: audited,
				before: all(isolates(slotA, egress), audits(slotA), isolates(slotB, ingress), audits(slotB),
					unknown("a"), unknown("b"))},
			{at: "from_pod linka", in: to("81 S"), want: audited},
		}},
	}
	return append(rows, row{name: "a segment of no connection, audited at one end and at both", steps: []step{
		{at: "from_pod linka", in: to("80 A"), want: audited, before: all(isolates(slotB, ingress), audits(slotB))},
		{at: "from_pod linka", in: to("81 A"), want: "DROP_NO_CONNECTION", out: "=", before: isolates(slotA, egress)},
		{at: "from_pod linka", in: to("81 A"), want: audited, before: audits(slotA)},
		{at: "from_pod linka", in: to("82 A"), want: "DROP_NO_CONNECTION", out: "=",
			before: all(opens, isolates(slotA, egress), isolates(slotB, ingress), audits(slotA))},
	}})
}
