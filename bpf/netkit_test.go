package bpf

import (
	"fmt"

	"myelin/test/packet/packettest"
)

// testMark is Settings.NetkitMark of these tables.
const testMark = uint64(0x1122334455667788)

func netkit(s *Settings) { s.Netkit, s.NetkitMark = 1, testMark }

// marked are skb->cb and the device by which the packet came; 0: a pod transmits it by a netkit device.
func marked(one, two, ingress uint32) packettest.Options {
	return packettest.Options{CB: [5]uint32{1: one, 2: two}, IngressIfindex: ingress}
}

// leaves checks skb->cb.
func leaves(one, two uint32) func(packettest.Result) error {
	return func(r packettest.Result) error {
		if r.Skb.CB[1] != one || r.Skb.CB[2] != two {
			return fmt.Errorf("cb[1] is %#x, cb[2] %#x, want %#x and %#x", r.Skb.CB[1], r.Skb.CB[2], one, two)
		}
		return nil
	}
}

// ingressIndex is any device: only 0 means something.
const ingressIndex = 1

// netkitTables are packets of pods with netkit links, as from_pod sees them on the device and then on tc ingress. What
// is processed once is not processed again, and no pod can claim that.
func netkitTables() []table {
	const lo, hi, forwarded = uint32(testMark & 0xffffffff), uint32(testMark >> 32), 0x6d796b66
	toHost, forged := `eth a > gw | ip a > node | tcp 40000 > 22 S`, `eth a > gw | ip b > node | tcp 40000 > 22 S`
	toPod := `eth a > gw | ip a > b | udp 1 > 2`
	return []table{{name: "netkit", settings: settingsOf(netkit), rows: []row{
		{name: "to the node, seen twice", since: ingressGiven(), steps: []step{
			{at: "from_pod linka", in: toHost, want: "FORWARD_STACK", out: "=", options: marked(0, 0, 0),
				check: leaves(lo, hi)},
			{at: "from_pod linka", in: toHost, ret: actOK, out: "=", options: marked(lo, hi, ingressIndex),
				check: leaves(0, 0)},
		}},
		{name: "marks that a pod writes", since: ingressGiven(), steps: []step{
			{at: "from_pod linka", in: forged, want: "DROP_SPOOFED_ADDRESS", options: marked(lo, hi, 0)},
			{at: "from_pod linka", in: forged, want: "DROP_SPOOFED_ADDRESS", options: marked(lo, 0, ingressIndex)},
			{at: "from_pod linka", in: forged, want: "DROP_SPOOFED_ADDRESS", options: marked(0, hi, ingressIndex)},
			{at: "from_pod linka", in: forged, want: "DROP_SPOOFED_ADDRESS", options: marked(0, 0, ingressIndex)},
			{at: "from_pod linka", in: forged, want: "DROP_SPOOFED_ADDRESS",
				options: marked(forwarded, 0, ingressIndex)},
		}},
		{name: "to a pod beside", since: ingressGiven(), steps: []step{
			{at: "from_pod linka", in: toPod, want: "FORWARD_POD", options: marked(lo, hi, 0),
				check: leaves(forwarded, 0)},
			{at: "from_pod linka", in: toPod, want: "FORWARD_POD", options: marked(lo, 0, ingressIndex),
				check: leaves(0, 0)},
		}},
	}}, {name: "netkit, policies", settings: settingsOf(netkit, policed, longTimes), rows: opened([]row{
		{name: "to a pod beside, and from the host", steps: []step{
			{at: "from_pod linka", in: toPod, want: "DROP_POLICY_NO_RULE", before: isolates(slotB, ingress)},
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 40000 > 81 S`, want: "DROP_POLICY_NO_RULE"},
			{at: "to_pod linkb", in: `eth gwb > b | ip a > b ttl 63 | udp 1 > 2`, want: "", out: "=",
				options: marked(forwarded, 0, 0), check: leaves(0, 0)},
		}},
	})}}
}

// ingressGiven is the oldest kernel that lets a test say by which device a packet came.
func ingressGiven() [2]int { return [2]int{5, 15} }
