package bpf

import (
	"fmt"

	"myelin/test/packet/packettest"
)

// hostPolicyRows: what the node itself gets and sends.
func hostPolicyRows() []row {
	const tcp, udp = 6, 17
	from := func(l4 string) string { return `eth router > node | ip world > node | ` + l4 }
	to := func(l4 string) string { return `eth node > router | ip node > world | ` + l4 }
	return []row{
		{name: "from outside", steps: []step{
			{at: "from_wire eth0", in: from(`tcp 40000 > 22 S`), want: "FORWARD_STACK", out: "=",
				before: isolates(worldHost, ingress, allows("", tcp, 22))},
			{at: "to_wire eth0", in: to(`tcp 22 > 40000 SA`), want: "FORWARD_STACK", out: "="},
			{at: "from_wire eth0", in: from(`tcp 40000 > 22 A`), want: "FORWARD_STACK", out: "="},
			{at: "from_wire eth0", in: from(`tcp 40000 > 23 S`), want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_wire eth0", in: from(`tcp 40000 > 22 A seq 1 ack 2`), want: "DROP_POLICY_NO_RULE REPLY_RESET",
				before: isolates(worldHost, ingress)},
		}},
		{name: "what it asks for is answered", steps: []step{
			{at: "to_wire eth0", in: to(`udp 40000 > 53`), want: "FORWARD_STACK", out: "=",
				before: isolates(worldHost, ingress)},
			{at: "from_wire eth0", in: from(`udp 53 > 40000`), want: "FORWARD_STACK", out: "="},
			{at: "from_wire eth0", in: from(`udp 54 > 40000`), want: "DROP_POLICY_NO_RULE", out: "="},
		}},
		{name: "what it sends", steps: []step{
			{at: "to_wire eth0", in: to(`udp 40000 > 53`), want: "FORWARD_STACK", out: "=",
				before: isolates(worldHost, egress, allows("", udp, 53))},
			{at: "to_wire eth0", in: to(`tcp 40000 > 53 S`), want: "DROP_POLICY_NO_RULE", out: "="},
			{at: "from_wire eth0", in: from(`tcp 40000 > 22 S`), want: "FORWARD_STACK", out: "="},
			{at: "to_wire eth0", in: to(`tcp 22 > 40000 SA`), want: "FORWARD_STACK", out: "="},
		}},
		{name: "a pod's", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > gw | tcp 40000 > 22 S`, want: "DROP_POLICY_NO_RULE",
				out: "=", before: isolates(worldHost, ingress, allows("b", tcp, 22))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > gw | tcp 40000 > 22 S`, want: "FORWARD_STACK"},
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | udp 40000 > 53`, want: "", out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw | udp 53 > 40000`, want: "FORWARD_STACK"},
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | udp 40000 > 53`, want: "DROP_POLICY_NO_RULE", out: "=",
				before: isolates(worldHost, egress)},
		}},
		only6(row{name: "neighbours find each other", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip6 router > node ttl 255 | nd solicit node from router`,
				want: "FORWARD_STACK", out: "=", before: isolates(worldHost, ingress)},
			{at: "to_pod linka", in: `eth gw > a | ip6 gw > a ttl 255 | nd advert gw from gw`, want: "", out: "=",
				before: isolates(worldHost, egress), after: flowsAre(0)},
			{at: "to_pod linka", in: `eth gw > a | ip6 gw > a ttl 64 | nd advert gw from gw`, out: "=",
				want: "DROP_POLICY_NO_RULE"},
		}}),
		{name: "not selected", steps: []step{
			{at: "from_wire eth0", in: from(`tcp 40000 > 23 S`), want: "FORWARD_STACK", out: "=",
				before: isolates(slotA, ingress)},
		}},
	}
}

// hostForwardRows: what pods send by the node's address is not subject to the node's policies.
func hostForwardRows() []row {
	mark := uint32(DatapathWireMarkWIRE_FORWARDED)
	marked := func(r packettest.Result) error {
		if r.Skb.CB[0] != mark {
			return fmt.Errorf("cb[0] is %#x, want %#x", r.Skb.CB[0], mark)
		}
		return nil
	}
	var steps []step
	for _, want := range []string{"FORWARD_RESOLVE", "FORWARD_WIRE"} {
		steps = append(steps,
			step{at: "from_pod linka", in: `eth a > gw | ip a > world ttl 64 | udp 40000 > 53`, want: want,
				check:  marked,
				out:    `eth node > router | ip node > world ttl 63 | udp 50000 > 53`,
				before: isolates(worldHost, egress)},
			step{at: "to_wire eth0", options: packettest.Options{CB: [5]uint32{mark}}, want: "FORWARD_STACK",
				out: "="})
	}
	return []row{
		{name: "a pod's by the node's address", steps: steps},
		{name: "the node's own", steps: []step{{at: "to_wire eth0", want: "DROP_POLICY_NO_RULE", out: "=",
			in: `eth node > router | ip node > world | udp 40000 > 53`, before: isolates(worldHost, egress)}}},
	}
}
