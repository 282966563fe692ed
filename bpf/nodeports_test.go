package bpf

import (
	"net/netip"
	"testing"
)

// portsOn says of this node's addresses, and of node2's, whether node ports answer there.
func portsOn(yes bool) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		n := worldNames()
		host, peer := uint8(DatapathEndpointFlagENDPOINT_HOST), uint32(
			DatapathPrefixFlagPREFIX_CLUSTER|DatapathPrefixFlagPREFIX_NODE)
		if !yes {
			host, peer = host|uint8(DatapathEndpointFlagENDPOINT_NO_PORTS), peer|uint32(
				DatapathPrefixFlagPREFIX_NO_PORTS)
		}
		for _, a := range families(n["node"]) {
			var row DatapathEndpoint
			must(t, w.Endpoints.Lookup(Addr(a), &row))
			row.Flags = host
			must(t, w.Endpoints.Put(Addr(a), row))
		}
		for _, a := range families(n["node2"]) {
			must(t, w.Prefixes.Put(Prefix(netip.PrefixFrom(a, a.BitLen())), DatapathPrefix{Flags: peer}))
		}
		w.bump(t, 0)
	}
}

// nodePortRows are node ports where nodePort.addresses has the address, and where it hasn't: there, packets are the
// host's, and other nodes'.
func nodePortRows() []row {
	world, pod, peer := `eth router > node | ip world > node | udp 40000 > 30080`,
		`eth a > gw | ip a > node | udp 40000 > 30080`, `eth a > gw | ip a > node2 | udp 40000 > 30080`
	on, off := portsOn(true), portsOn(false)
	return []row{
		{name: "from outside", steps: []step{
			{at: "from_wire eth0", in: world, want: "FORWARD_STACK", out: "=", before: off, after: translationsAre(0)},
			{at: "from_wire eth0", in: world, want: "FORWARD_POD",
				out: `eth gwb > b | ip world > b ttl 63 | udp 40000 > 8080`, before: on},
		}},
		{name: "a pod, to its node", steps: []step{
			{at: "from_pod linka", in: pod, want: "FORWARD_STACK", out: "=", before: off, after: translationsAre(0)},
			{at: "from_pod linka", in: pod, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 40000 > 8080`, before: on},
		}},
		{name: "a pod, to another node", steps: []step{
			{at: "from_pod linka", in: peer, want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > node2 ttl 63 | udp 40000 > 30080`, before: off,
				after: translationsAre(0)},
			{at: "from_pod linka", in: peer, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 40000 > 8080`, before: on},
		}},
		{name: "a load balancer's address", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 80`, want: "FORWARD_POD",
				before: off},
		}},
	}
}
