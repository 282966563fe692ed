package bpf

func portRows() []row {
	const tcp, udp, sctp = 6, 17, 132
	ports := isolates(slotB, ingress, said{"a", tcp, 8080, 12, DatapathPolicyActionPOLICY_ALLOW, 0},
		said{"a", tcp, 8084, 16, DatapathPolicyActionPOLICY_DENY, 0},
		said{"a", udp, 0, 0, DatapathPolicyActionPOLICY_ALLOW, 0}, allows("a", sctp, 80))
	at := func(l4, want string) step {
		return step{at: "from_pod linka", in: `eth a > gw | ip a > b | ` + l4, want: want}
	}
	first := at("tcp 40000 > 8080 S", "FORWARD_POD")
	first.before = ports
	return []row{{name: "ranges and protocols", steps: []step{
		first,
		at("tcp 40000 > 8095 S", "FORWARD_POD"),
		at("tcp 40000 > 8084 S", "DROP_POLICY_DENIED"),
		at("tcp 40000 > 8096 S", "DROP_POLICY_NO_RULE"),
		at("tcp 40000 > 8079 S", "DROP_POLICY_NO_RULE"),
		at("udp 40000 > 9", "FORWARD_POD"),
		at("udp 40000 > 65535", "FORWARD_POD"),
		at("sctp 40000 > 80 | len 4", "FORWARD_POD"),
		at("sctp 40000 > 81 | len 4", "DROP_POLICY_NO_RULE"),
	}}}
}

// cutRows are flows that a policy comes to forbid.
func cutRows(want string) []row {
	const tcp, udp = 6, 17
	datagram := "DROP_POLICY_NO_RULE"
	if want == "FORWARD_POD" {
		datagram = want
	}
	return []row{
		{name: "a connection", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 A seq 2 ack 7`, want: want,
				before: isolates(slotB, ingress, allows("c", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 A seq 7 ack 2`, want: want},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 A seq 2 ack 7`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", tcp, 80))},
		}},
		{name: "datagrams", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 40000 > 53`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", udp, 53))},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 40000 > 53`, want: datagram,
				before: isolates(slotB, ingress)},
		}},
	}
}

func changeRows() []row {
	const tcp = 6
	return []row{
		{name: "another connection between the same ports", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("a", tcp, 80))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 RA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 S`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "DROP_POLICY_NO_RULE",
				out: "=", before: isolates(slotB, ingress)},
		}},
		{name: "no policy any more", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "DROP_POLICY_NO_RULE",
				before: isolates(slotB, ingress)},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_POD", before: opens},
		}},
	}
}

func policyWorldRows() []row {
	const tcp, udp = 6, 17
	const unreachable = `eth a > gw | ip a > world | icmp unreachable port | ip world > a | udp 53 > 40000`
	return []row{
		{name: "an ICMP error about a masqueraded flow", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "FORWARD_RESOLVE",
				before: isolates(slotA, egress, allows("", udp, 53))},
			{at: "from_pod linka", in: unreachable, want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: unreachable, want: "DROP_POLICY_NO_RULE", before: isolates(slotA, egress)},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "DROP_POLICY_NO_RULE"},
			{at: "from_pod linka", in: unreachable, want: "DROP_ICMP_UNRELATED"},
		}},
		{name: "to the world", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 443 S`, want: "FORWARD_RESOLVE",
				before: isolates(slotA, egress, allows("", tcp, 443))},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 443 A`, want: "FORWARD_WIRE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 443 > 50000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 444 S`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 443 A seq 1 ack 2`,
				want: "DROP_POLICY_NO_RULE REPLY_RESET", before: isolates(slotA, egress)},
		}},
		{name: "from the world, and its answer", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > a | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: all(isolates(slotA, ingress, allows("", tcp, 80)), isolates(slotA, egress))},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 80 > 40000 SA`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip a > world ttl 63 | tcp 80 > 40000 SA`},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 81 > 40001 S`, want: "DROP_POLICY_NO_RULE",
				out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40002 > 81 A seq 1 ack 2`,
				want: "DROP_NO_CONNECTION", out: "="},
		}},
	}
}
