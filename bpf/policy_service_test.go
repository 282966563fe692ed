package bpf

// policyServiceRows are flows to Services: policies apply to the backend, not to the frontend.
func policyServiceRows() []row {
	const tcp = 6
	to := func(port string) string { return `eth a > gw | ip a > vip | tcp 40000 > ` + port }
	return []row{
		{name: "a client's", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD",
				out:    `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 8080 S`,
				before: isolates(slotA, egress, allows("b", tcp, 8080), allows("vip", tcp, 81))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | tcp 80 > 40000 SA`},
			{at: "from_pod linka", in: to("81 S"), want: "DROP_POLICY_NO_RULE", out: "=", after: translationsAre(1)},
			{at: "from_pod linka", in: to("80 A seq 2 ack 7"), want: "DROP_POLICY_NO_RULE REPLY_RESET",
				before: isolates(slotA, egress)},
			{at: "from_pod linka", in: to("80 A seq 2 ack 7"), want: "FORWARD_POD", before: opens},
		}},
		{name: "a client's, from before any policy", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: to("80 A seq 2 ack 7"), want: "DROP_POLICY_NO_RULE REPLY_RESET",
				before: isolates(slotA, egress), after: translationsAre(1)},
			{at: "from_pod linka", in: to("80 A seq 2 ack 7"), want: "FORWARD_POD", before: opens},
		}},
		{name: "a backend's", steps: []step{
			{at: "from_pod linka", in: to("80 S"), want: "DROP_POLICY_NO_RULE", out: "=",
				before: isolates(slotB, ingress, allows("a", tcp, 80)), after: translationsAre(0)},
			{at: "from_pod linka", in: to("80 S"), want: "FORWARD_POD", before: isolates(slotB, ingress,
				allows("a", tcp, 8080))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD"},
		}},
		{name: "a client's outside", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 80 S`,
				want: "DROP_POLICY_NO_RULE", out: "=", before: isolates(slotB, ingress, allows("a", tcp, 8080))},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: isolates(slotB, ingress, allows("", tcp, 8080))},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | tcp 8080 > 40000 SA`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 SA`},
		}},
		{name: "a pod, to itself", steps: []step{
			{at: "from_pod linka", in: to("82 S"), want: "FORWARD_POD",
				before: all(isolates(slotA, ingress, allows("a", tcp, 8080)),
					isolates(slotA, egress, allows("a", tcp, 8080)))},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw ttl 64 | tcp 8080 > 51000 SA`, want: "FORWARD_POD"},
		}},
	}
}
