package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/test/packet"
)

const (
	ingress = int(DatapathPolicyDirectionPOLICY_INGRESS)
	egress  = int(DatapathPolicyDirectionPOLICY_EGRESS)

	slotA, slotB = 2, 3
)

func hostPoliced(s *Settings) { s.HostPolicy = 1 }

func policed(s *Settings) { s.Policy = 1 }

func cutting(cut DatapathPolicyCut) func(*Settings) {
	return func(s *Settings) { s.PolicyCut = uint8(cut) }
}

// said is a row of a set: what it says of a peer ("" is everybody else), a protocol and the first bits of a port.
type said struct {
	peer   string
	proto  uint8
	port   uint16
	bits   uint8
	action DatapathPolicyAction
	proxy  uint16
}

func allows(peer string, proto uint8, port uint16) said {
	return said{peer, proto, port, 16, DatapathPolicyActionPOLICY_ALLOW, 0}
}

// identities are those that the node knows; all other addresses are the world's.
func identities() map[string]uint32 {
	return map[string]uint32{"gw": 1, "node": 1, "a": 70001, "b": 70002, "c": 70003, "named": 70004}
}

// isolates gives the endpoint policies for one direction, in the place of those it had: what is not said is denied, for
// no rule allows it.
func isolates(slot uint16, direction int, list ...said) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var e DatapathEndpointPolicy
		if err := w.Policies.Lookup(uint32(slot), &e); err != nil {
			e = DatapathEndpointPolicy{}
		}
		w.sets += 10
		set, lengths := w.sets, map[uint32]uint32{}
		list := append(slices.Clone(list), said{action: DatapathPolicyActionPOLICY_NO_RULE})
		for _, s := range list {
			if s.peer != "" {
				list = append(list, said{peer: s.peer, action: DatapathPolicyActionPOLICY_NO_RULE})
			}
		}
		for i, s := range list {
			class := set + identities()[s.peer]%10
			lengths[class] |= 1 << s.bits
			key := DatapathVerdictKey{Class: class, Port: s.port, Proto: s.proto, Bits: s.bits}
			if s.proto == 0 {
				must(t, w.Verdicts.Update(key, DatapathVerdict{Action: uint8(s.action)}, ebpf.UpdateAny))
			} else {
				must(t, w.Verdicts.Put(key, DatapathVerdict{Action: uint8(s.action), Rule: uint32(i + 1),
					Proxy: s.proxy}))
			}
			if s.peer != "" {
				must(t, w.PeerClasses.Put(DatapathPeerClassKey{Set: set, Identity: identities()[s.peer]},
					DatapathPeerClass{Class: class, Lengths: lengths[class]}))
			}
		}
		for _, s := range list {
			if s.proxy != 0 {
				e.L7 |= uint8(DatapathPolicyL7POLICY_L7)
			}
		}
		e.Set[direction] = [2]uint32{set, set}
		e.Lengths[direction] = [2]uint32{lengths[set], lengths[set]}
		must(t, w.Policies.Put(uint32(slot), e))
		w.bump(t, slot)
	}
}

// opens takes all policies away, before a row of a table.
func opens(t testing.TB, w *world) {
	t.Helper()
	for _, slot := range []uint16{worldHost, slotA, slotB} {
		if err := w.Policies.Delete(uint32(slot)); err == nil {
			w.bump(t, slot)
		}
	}
}

// audits makes what the endpoint's policies deny pass.
func audits(slot uint16) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var e DatapathEndpointPolicy
		must(t, w.Policies.Lookup(uint32(slot), &e))
		e.Audit = 1
		must(t, w.Policies.Put(uint32(slot), e))
	}
}

// knows writes the identity of the addresses that the name stands for, or removes it; no decision becomes stale,
// but what is good for one generation.
func knows(name string, id uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for _, a := range families(worldNames()[name]) {
			if id != 0 {
				must(t, w.Peers.Put(Addr(a), id))
			} else {
				must(t, w.Peers.Delete(Addr(a)))
			}
		}
		must(t, (&Epochs{Map: w.Epochs}).Move())
	}
}

func all(list ...func(testing.TB, *world)) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for _, f := range list {
			if f != nil {
				f(t, w)
			}
		}
	}
}

// fillIdentities writes the identities of addresses, and the prefixes of the other nodes' pods.
func (w *world) fillIdentities(t testing.TB) {
	t.Helper()
	n := worldNames()
	for name, id := range identities() {
		for _, a := range families(n[name]) {
			must(t, w.Peers.Put(Addr(a), id))
		}
	}
	for _, name := range []string{"c", "d"} {
		for _, a := range families(n[name]) {
			must(t, w.PeerPrefixes.Put(Prefix(around(a)), uint32(0)))
		}
	}
}

func policyTables() []table {
	return []table{
		{name: "policies", settings: settingsOf(policed, longTimes), rows: opened(policyRows(), peerRows(), auditRows(),
			auditUnknownRows(), icmpRows(), portRows(), cutRows("DROP_POLICY_NO_RULE REPLY_RESET"), changeRows(),
			rowlessRows())},
		{name: "policies, cut by dropping", settings: settingsOf(policed, cutting(DatapathPolicyCutCUT_DROP),
			longTimes), rows: opened(cutRows("DROP_POLICY_NO_RULE"))},
		{name: "policies, cut by nothing", settings: settingsOf(policed, cutting(DatapathPolicyCutCUT_LEAVE),
			longTimes), rows: opened(cutRows("FORWARD_POD"))},
		{name: "policies, every flow with a row", settings: settingsOf(policed, tracking, longTimes),
			rows: opened(policyRows(), peerRows(), auditRows(), auditUnknownRows(), icmpRows(), portRows(),
				changeRows(), rowlessRows())},
		{name: "policies, Services", settings: settingsOf(policed, servicing, longTimes),
			rows: opened(policyRows(), peerRows(), auditRows(), auditUnknownRows(), policyServiceRows())},
		{name: "policies, the host's", settings: settingsOf(policed, hostPoliced, longTimes),
			rows: opened(policyRows(), peerRows(), auditRows(), auditUnknownRows(), hostPolicyRows())},
		{name: "policies, the host's, masquerading", settings: settingsOf(policed, hostPoliced, masquerading,
			longTimes), rows: opened(hostPolicyRows(), hostForwardRows())},
		{name: "policies, masquerading", settings: settingsOf(policed, masquerading, longTimes),
			rows: opened(policyRows(), peerRows(), auditRows(), auditUnknownRows(), policyWorldRows())},
	}
}

// opened rows begin without policies.
func opened(lists ...[]row) (out []row) {
	for _, list := range lists {
		for _, r := range list {
			had := r.steps[0].before
			r.steps[0].before = all(opens, had)
			out = append(out, r)
		}
	}
	return out
}

func policyRows() []row {
	const tcp = 6
	to := func(port string) string { return `eth a > gw | ip a > b | tcp 40000 > ` + port }
	from := func(port string) string { return `eth b > gwb | ip b > a | tcp ` + port + ` > 40000 ` }
	return append([]row{
		{name: "ingress, a rule and no rule", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD", before: isolates(slotB, ingress,
				allows("a", tcp, 80))},
			{at: "from_pod linkb", in: from("80") + "SA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: to("80 A"), want: "FORWARD_POD"},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 S`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 40000 > 80 S`,
				want: "DROP_POLICY_NO_RULE", out: "="},
		}},
		{name: "ingress, whoever", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("", tcp, 80))},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | tcp 40000 > 80 S`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | udp 40000 > 80`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world > b | esp spi 1 seq 1 | len 8`,
				want: "DROP_POLICY_NO_RULE", out: "="},
		}},
		{name: "a rule denies", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "DROP_POLICY_DENIED", out: "=",
				before: isolates(slotB, ingress, said{"a", tcp, 80, 16, DatapathPolicyActionPOLICY_DENY, 0},
					said{peer: "a", action: DatapathPolicyActionPOLICY_ALLOW})},
		}},
		{name: "egress, and what others ask for", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "DROP_POLICY_NO_RULE", out: "=",
				before: isolates(slotA, egress, allows("c", tcp, 80))},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40000 > 80 S`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | tcp 80 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | tcp 5000 > 22 S`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 22 > 5000 SA`, want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40001 > 81 S`, want: "DROP_POLICY_NO_RULE",
				out: "="},
		}},
	}, policyEndRows()...)
}

func policyEndRows() []row {
	const tcp = 6
	to := func(port string) string { return `eth a > gw | ip a > b | tcp 40000 > ` + port }
	return []row{
		{name: "both ends", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD",
				before: all(isolates(slotA, egress, allows("b", tcp, 80), allows("b", tcp, 81)),
					isolates(slotB, ingress, allows("a", tcp, 80)))},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "="},
		}},
		{name: "what the host sends", steps: []step{
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 40000 > 80 S`, want: "", out: "=",
				before: isolates(slotB, ingress, allows("gw", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > gw | tcp 80 > 40000 SA`, want: "FORWARD_STACK"},
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 40000 > 81 S`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | tcp 40000 > 81 S`, want: "", out: "="},
		}},
		{name: "errors about flows that pass", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD", before: isolates(slotA, ingress)},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp unreachable port | ip a > b | tcp 40000 > 80 S`,
				want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp unreachable port | ip a > b | tcp 40000 > 81 S`,
				want: "DROP_POLICY_NO_RULE", out: "="},
		}},
	}
}

// peerRows are about peers that come, go and change.
func peerRows() []row {
	const tcp = 6
	return []row{
		{name: "a pod that is not known yet", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip d > b | tcp 40000 > 80 S`,
				want: "DROP_POLICY_PEER_UNKNOWN", out: "=", before: isolates(slotB, ingress, allows("", tcp, 80))},
			{at: "from_wire eth0", in: `eth node2 > node | ip d > a | tcp 40000 > 80 S`, want: "FORWARD_POD"},
		}},
		{name: "a pod that is gone, and another one with its address", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("c", tcp, 80), allows("a", tcp, 81))},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40001 > 80 S`,
				want: "DROP_POLICY_PEER_UNKNOWN", out: "=", before: knows("c", 0)},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40002 > 80 S`, want: "DROP_POLICY_NO_RULE",
				out: "=", before: knows("c", identities()["a"])},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40003 > 81 S`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | tcp 40004 > 81 S`, want: "DROP_POLICY_NO_RULE",
				out: "=", before: knows("c", identities()["c"])},
		}},
	}
}

// auditRows are about ends of which one or both only report.
func auditRows() []row {
	const tcp = 6
	to := func(port string) string { return `eth a > gw | ip a > b | tcp 40000 > ` + port }
	return []row{
		{name: "audited", steps: []step{
			{at: "from_pod linka", in: to("81 S"), want: "FORWARD_AUDIT FORWARD_POD",
				before: all(isolates(slotB, ingress, allows("a", tcp, 80)), audits(slotB))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 81 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD"},
		}},
		{name: "audited at one end, denied at the other", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_AUDIT FORWARD_POD",
				before: all(isolates(slotA, egress), audits(slotA), isolates(slotB, ingress, allows("a", tcp, 80)))},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "="},
		}},
	}
}

// icmpRows are about types, which stand where others have ports.
func icmpRows() []row {
	const icmp, icmp6 = 1, 58
	return []row{
		only4(echoRow(packet.IPv4, icmp, 8)), only6(echoRow(packet.IPv6, icmp6, 128)),
		only4(unsolicitedRow(icmp, "echo id 7 seq 1", "echo-reply id 7 seq 1", 0)),
		only6(unsolicitedRow(icmp6, "echo id 7 seq 1", "echo-reply id 7 seq 1", 129)),
		only4(unsolicitedRow(icmp, "timestamp id 7 seq 1 | len 12", "timestamp-reply id 7 seq 1 | len 12", 14)),
		only4(unsolicitedRow(icmp, "timestamp id 7 seq 1 | len 12", "timestamp id 7 seq 1 | len 12", 13)),
		only4(row{name: "one type opens no other", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip4 a > b | icmp timestamp id 7 seq 1 | len 12`,
				want: "FORWARD_POD", before: isolates(slotB, ingress, allows("a", icmp, 13))},
			{at: "from_pod linkb", in: `eth b > gwb | ip4 b > a | icmp timestamp-reply id 7 seq 1 | len 12`,
				want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip4 a > b | icmp type 17 | len 8`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip4 a > b | icmp echo id 7 seq 1`, want: "DROP_POLICY_NO_RULE",
				out: "="},
		}}),
		only6(row{name: "one type opens no other", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip6 a > b | icmp type 139 | len 8`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", icmp6, 139))},
			{at: "from_pod linka", in: `eth a > gw | ip6 a > b | icmp type 150 | len 8`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip6 a > b | icmp echo id 7 seq 1`, want: "DROP_POLICY_NO_RULE",
				out: "="},
		}}),
	}
}

// unsolicitedRow is a reply to no request, which permits no request in the opposite direction.
func unsolicitedRow(proto uint8, request, reply string, kind uint16) row {
	return row{name: "an unsolicited reply, " + request, steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp ` + reply, want: "FORWARD_POD",
			before: all(isolates(slotB, ingress, allows("a", proto, kind)), isolates(slotB, egress))},
		{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp ` + request, want: "DROP_POLICY_NO_RULE", out: "="},
		{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp ` + reply, want: "FORWARD_POD"},
	}}
}

func echoRow(f packet.Family, proto uint8, kind uint16) row {
	return row{name: "echo, by its type", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp echo id 7 seq 1`, want: "FORWARD_POD",
			before: isolates(slotB, ingress, allows("a", proto, kind))},
		{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp echo-reply id 7 seq 1`, want: "FORWARD_POD"},
		{at: "from_wire eth0", in: `eth node2 > node | ip c > b | icmp echo id 7 seq 1`, want: "DROP_POLICY_NO_RULE",
			out: "="},
	}}
}
