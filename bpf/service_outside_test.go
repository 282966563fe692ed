package bpf

// outsideRows: world is the client.
func outsideRows() []row {
	return append([]row{
		{name: "to a pod of this node", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30080 S seq 1`,
				want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 S seq 1`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 SA seq 5 ack 2`,
				want: "FORWARD_RESOLVE",
				out:  `eth node > router | ip node > world ttl 63 | tcp 30080 > 40000 SA seq 5 ack 2`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 A | len 1400`,
				want:  "FORWARD_WIRE",
				out:   `eth node > router | ip node > world ttl 63 | tcp 30080 > 40000 A | len 1400`,
				after: translationsAre(1)},
		}},
		{name: "to a pod of node2", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "q"`,
				want: "FORWARD_RESOLVE", out: `eth node > node2 | ip node > c ttl 59 | udp 51000 > 8080 | "q"`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > node ttl 60 | udp 8080 > 51000 | "r"`,
				want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world ttl 59 | udp 81 > 40000 | "r"`},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 nosum`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 59 | udp 51000 > 8080 nosum`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > node ttl 60 | udp 8080 > 51000 | "r"`,
				want: "FORWARD_WIRE", out: `eth node > router | ip lb > world ttl 59 | udp 81 > 40000 | "r"`,
				after: translationsAre(1)},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > lb ttl 60 | udp 40000 > 81`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 59 | udp 50000 > 8080`},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > lb ttl 60 | udp 40001 > 81`,
				want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > lb ttl 60 | udp 40000 > 81`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 59 | udp 50000 > 8080`,
				after: translationsAre(2)},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > node ttl 60 | udp 8080 > 50000 | "r"`,
				want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world2 ttl 59 | udp 81 > 40000 | "r"`},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > lb ttl 60 | tcp 40000 > 81 S`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 S`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > node ttl 60 | udp 8081 > 51000 | "r"`,
				want: "FORWARD_STACK", out: "="},
		}},
		{name: "to the host itself", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30084 S seq 1`,
				want: "FORWARD_STACK", out: `eth router > node | ip world > node ttl 60 | tcp 40000 > 8080 S seq 1`},
			{at: "to_wire eth0", in: `eth node > router | ip node > world ttl 64 | tcp 8080 > 40000 SA seq 5 ack 2`,
				want:  "FORWARD_STACK",
				out:   `eth node > router | ip node > world ttl 64 | tcp 30084 > 40000 SA seq 5 ack 2`,
				after: translationsAre(1)},
			{at: "to_wire eth0", in: `eth node > router | ip node > world ttl 64 | tcp 22 > 40000 A`,
				want: "FORWARD_STACK", out: "="},
		}},
	}, outsideOtherRows()...)
}

func outsideOtherRows() []row {
	return []row{
		{name: "fragments", steps: []step{
			{at: "from_wire eth0",
				in: `eth router > node | ip world > lb frag 7 off 0 mf | udp 40000 > 81 len 1600 sum ` +
					`0x1111 | len 1000`,
				want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip node > c ttl 63 frag 7 off 0 mf | udp 51000 > 8080 len 1600 sum ` +
					`0x1111 | len 1000`, ignore: []string{"udp.sum"}},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb frag 7 off 1008 proto udp | len 592`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip node > c ttl 63 frag 7 off 1008 proto udp | len 592`},
		}},
		{name: "two Services from one port", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 40000 > 30080`, want: "FORWARD_POD",
				out: `eth gwb > b | ip world > b ttl 63 | udp 40000 > 8080`},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 80`, want: "FORWARD_POD",
				out: `eth gwb > b | ip world > b ttl 63 | udp 51000 > 8080`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | udp 8080 > 51000`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip lb > world ttl 63 | udp 80 > 40000`},
		}},
		one("a Service for the inside", "from_wire eth0", `eth router > node | ip world > vip | udp 40000 > 80`,
			"FORWARD_STACK", "="),
		one("no such port", "from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 99`,
			"FORWARD_STACK", "="),
		one("no such node port", "from_wire eth0", `eth router > node | ip world > node | udp 40000 > 30099`,
			"FORWARD_STACK", "="),
		one("the host's", "from_wire eth0", `eth router > node | ip world > node | tcp 40000 > 22 S`,
			"FORWARD_STACK", "="),
		one("in its ranges", "from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 87`, "FORWARD_POD",
			`eth gwb > b | ip world > b ttl 63 | udp 40000 > 8080`),
		one("not in its ranges", "from_wire eth0", `eth router > node | ip world2 > lb | udp 40000 > 87`,
			"DROP_SOURCE_RANGE", "="),
		one("none on this node", "from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 86`,
			"DROP_NO_LOCAL_BACKEND", "="),
		one("the last hop", "from_wire eth0", `eth router > node | ip world > lb ttl 1 | udp 40000 > 81`,
			"DROP_TTL REPLY_ICMP", ""),
	}
}

// worldBackendRows: the backend is where pods are masqueraded to.
func worldBackendRows() []row {
	return []row{
		{name: "a backend in the world", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 83`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip node > world2 ttl 63 | udp 51000 > 8080`},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > node ttl 60 | udp 8080 > 51000`,
				want: "FORWARD_POD", out: `eth gw > a | ip vip > a ttl 59 | udp 83 > 40000`, after: flowsAre(0)},
		}},
	}
}

func legacyServiceRows() []row {
	return []row{
		{name: "to a pod of this node", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 80`, want: "FORWARD_STACK",
				out: `eth a > gw | ip a > b ttl 64 | udp 40000 > 8080`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a ttl 64 | udp 8080 > 40000`, want: "FORWARD_STACK",
				out: `eth b > gwb | ip vip > a ttl 64 | udp 80 > 40000`},
		}},
		{name: "a node port, on the node's own address, to a pod of node2", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > node ttl 64 | udp 40000 > 30081`, want: "FORWARD_STACK",
				out: `eth a > gw | ip a > c ttl 64 | udp 40000 > 8080`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a ttl 60 | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip node > a ttl 59 | udp 30081 > 40000`},
		}},
		{name: "from outside, to a pod of this node", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30080 S`,
				want: "FORWARD_STACK", out: `eth router > node | ip world > b ttl 60 | tcp 40000 > 8080 S`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 SA`, want: "FORWARD_STACK",
				out: `eth b > gwb | ip node > world ttl 64 | tcp 30080 > 40000 SA`},
		}},
		{name: "from outside, to a pod of node2", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30081 S`,
				want: "FORWARD_RESOLVE", out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8080 S`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > node ttl 60 | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE", out: `eth node > router | ip node > world ttl 59 | tcp 30081 > 40000 SA`},
		}},
	}
}

func tunnelServiceRows() []row {
	return []row{
		{name: "to a pod of node2", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 81`, want: "FORWARD_TUNNEL",
				out: `eth none > none | ip a > c ttl 63 | udp 40000 > 8080`},
			{at: "from_wire vx0", in: `eth stranger > none | ip c > a ttl 60 | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 59 | udp 81 > 40000`},
		}},
		{name: "from outside, to a pod of node2", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30081 S`,
				want: "FORWARD_TUNNEL", out: `eth none > none | ip gw > c ttl 59 | tcp 51000 > 8080 S`},
			{at: "from_wire vx0", in: `eth stranger > none | ip c > gw ttl 60 | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE", out: `eth node > router | ip node > world ttl 59 | tcp 30081 > 40000 SA`},
		}},
	}
}

func serviceErrorRows() []row {
	return []row{
		{name: "a backend refuses a pod's datagram", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80 | "q"`, want: "FORWARD_POD"},
			{at: "from_pod linkb",
				in:   `eth b > gwb | ip b > a | icmp unreachable port | ip a > b ttl 63 | udp 40000 > 8080 | "q"`,
				want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | icmp unreachable port | ip a > vip ttl 63 | udp ` +
					`40000 > 80 | "q"`},
		}},
		{name: "a router reports on a pod's segment", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 81 S seq 9`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0",
				in: `eth node2 > node | ip node2 > a | icmp too-big mtu 1280 | ip a > c ttl 3 df | tcp 40000 ` +
					`> 8080 S seq 9`, want: "FORWARD_POD",
				out: `eth gw > a | ip node2 > a ttl 63 | icmp too-big mtu 1280 | ip a > vip ttl 3 df | tcp ` +
					`40000 > 81 S seq 9`},
		}},
		{name: "a router reports on what comes from outside", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81 | "q"`,
				want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0",
				in: `eth node2 > node | ip c > node | icmp unreachable port | ip node > c ttl 3 | udp ` +
					`51000 > 8080 | "q"`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip lb > world ttl 63 | icmp unreachable port | ip world > lb ttl 3 | udp ` +
					`40000 > 81 | "q"`},
		}},
		{name: "the client's path is narrow", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 80`, want: "FORWARD_POD"},
			{at: "from_wire eth0",
				in: `eth router > node | ip router > lb | icmp too-big mtu 1280 | ip lb > world ttl 3 df | udp 80 > ` +
					`40000 | len 100`, want: "FORWARD_POD",
				out: `eth gwb > b | ip router > b ttl 63 | icmp too-big mtu 1280 | ip b > world ttl 3 df | udp 8080 ` +
					`> 40000 | len 100`},
		}},
		{name: "the client's path is narrow, the backend elsewhere", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0",
				in: `eth router > node | ip router > lb | icmp too-big mtu 1280 | ip lb > world ttl 3 df | udp 81 > ` +
					`40000 | len 100`, want: "FORWARD_WIRE",
				out: `eth node > node2 | ip node > c ttl 63 | icmp too-big mtu 1280 | ip c > node ttl 3 df | udp ` +
					`8080 > 51000 | len 100`},
		}},
		one("about nothing that is known", "from_wire eth0",
			`eth router > node | ip router > node | icmp unreachable port | ip node > c | udp 51000 > 8080`,
			"FORWARD_STACK", "="),
	}
}
