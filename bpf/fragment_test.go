package bpf

import (
	"fmt"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

func fragmentTables() []table {
	rows := append(fragmentRows(packet.IPv4), fragmentRows(packet.IPv6)...)
	return []table{
		{name: "fragments", settings: settingsOf(masquerading), rows: rows},
		{name: "fragments, tracking", settings: settingsOf(masquerading, tracking), rows: rows},
		{name: "fragments, tunnel", settings: settingsOf(masquerading, tracking, tunnel4, vxlanPort), rows: rows},
		{name: "fragments, tunnel over IPv6", settings: settingsOf(masquerading, tracking, tunnel6, vxlanPort),
			rows: rows},
	}
}

// fragmentsOf cuts the packet, for an IP packet of at most 600 bytes each, into lines of a table.
func fragmentsOf(f packet.Family, text string, id uint32) []string {
	b, err := packet.Parse(text, f, worldNames())
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err)) // a table's row is written wrong
	}
	frames, err := packet.Fragment(b, 600, id)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	var lines []string
	for _, frame := range frames {
		lines = append(lines, hexFrame(frame))
	}
	return lines
}

const (
	bigOut     = `eth a > gw | ip a > world ttl 64 | udp 40000 > 53 | len 1400`
	bigOutWire = `eth node > router | ip node > world ttl 63 | udp 50000 > 53 | len 1400`
	bigIn      = `eth router > node | ip world > node ttl 64 | udp 53 > 50000 | len 1400`
	bigInPod   = `eth gw > a | ip world > a ttl 63 | udp 53 > 40000 | len 1400`
)

func fragmentRows(f packet.Family) []row {
	out, outWire := fragmentsOf(f, bigOut, 7), fragmentsOf(f, bigOutWire, 7)
	in, inPod := fragmentsOf(f, bigIn, 8), fragmentsOf(f, bigInPod, 8)
	other := fragmentsOf(f, bigOut, 9)
	first := step{at: "from_pod linka", in: out[0], want: "FORWARD_RESOLVE", out: outWire[0]}
	rows := []row{
		{name: "in order", steps: []step{
			first,
			{at: "from_pod linka", in: out[1], want: "FORWARD_WIRE", out: outWire[1]},
			{at: "from_pod linka", in: out[2], want: "FORWARD_WIRE", out: outWire[2], after: flowsAre(1)},
			{at: "from_wire eth0", in: in[0], want: "FORWARD_POD", out: inPod[0]},
			{at: "from_wire eth0", in: in[2], want: "FORWARD_POD", out: inPod[2]},
			{at: "from_wire eth0", in: in[1], want: "FORWARD_POD", out: inPod[1], after: flowsAre(1)},
		}},
		{name: "the first is missing", steps: []step{
			{at: "from_pod linka", in: out[1], want: "DROP_FRAGMENT_FIRST_MISSING", out: "=", after: flowsAre(0)},
		}},
		{name: "the first is another packet's", steps: []step{
			first,
			{at: "from_pod linka", in: other[1], want: "DROP_FRAGMENT_FIRST_MISSING", out: "="},
			{at: "from_pod linka", in: other[0], want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: other[1], want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: out[2], want: "FORWARD_WIRE", out: outWire[2]},
		}},
		{name: "the first of what comes in is missing", steps: []step{
			first,
			{at: "from_wire eth0", in: in[1], want: "FORWARD_STACK", out: "="},
		}},
		{name: "echo", steps: fragmentedEcho(f)},
		{name: "sctp", steps: []step{
			{at: "from_pod linka",
				in:   fragmentsOf(f, `eth a > gw | ip a > world ttl 64 | sctp 40000 > 80 vtag 9 data | len 1000`, 5)[0],
				want: "DROP_SCTP_FRAGMENT"},
		}},
	}
	for i := range rows {
		rows[i].only = f
	}
	return rows
}

func fragmentedEcho(f packet.Family) []step {
	out := fragmentsOf(f, `eth a > gw | ip a > world ttl 64 | icmp echo id 7 seq 1 | len 1000`, 3)
	outWire := fragmentsOf(f, `eth node > router | ip node > world ttl 63 | icmp echo id 50000 seq 1 | len 1000`, 3)
	in := fragmentsOf(f, `eth router > node | ip world > node ttl 64 | icmp echo-reply id 50000 seq 1 | len 1000`, 4)
	inPod := fragmentsOf(f, `eth gw > a | ip world > a ttl 63 | icmp echo-reply id 7 seq 1 | len 1000`, 4)
	return []step{
		{at: "from_pod linka", in: out[0], want: "FORWARD_RESOLVE", out: outWire[0]},
		{at: "from_pod linka", in: out[1], want: "FORWARD_WIRE", out: outWire[1]},
		{at: "from_wire eth0", in: in[0], want: "FORWARD_POD", out: inPod[0]},
		{at: "from_wire eth0", in: in[1], want: "FORWARD_POD", out: inPod[1]},
	}
}

// Fragments that wait for their later ones have rows of their own: identifiers that follow each other don't meet,
// whatever another pod sends.
func TestFragmentRowsAreSpread(t *testing.T) {
	const waiting, flood = 128, 5000
	w := newWorld(t, settingsOf(masquerading), onlyForwarding)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		first := map[packet.Family]string{
			packet.IPv4: "eth %[1]s > gw%[2]s | ip4 %[1]s > world frag %[3]d mf | udp 1 > %[4]d len 3000 sum 0x1234 " +
				"| len 16",
			packet.IPv6: "eth %[1]s > gw%[2]s | ip6 %[1]s > world | frag %[3]d mf | udp 1 > %[4]d len 3000 sum " +
				"0x1234 | len 16",
		}[f]
		send := func(pod, gw string, id, port int) {
			in := packettest.Frame(t, f, worldNames(), fmt.Sprintf(first, pod, gw, id, port))
			r, err := packettest.Run(w.FromPod, in, packettest.Options{Ifindex: uint32(w.index["link"+pod])})
			must(t, err)
			if r.Ret != actRedirect {
				t.Fatalf("fragment %d of %s was not forwarded: %d", id, pod, r.Ret)
			}
		}
		for id := range waiting {
			send("b", "b", id, 2)
		}
		for id := range flood {
			send("a", "", id, 3)
		}
		rows := 0
		must(t, Each(w.Fragments, func(k *DatapathFragmentKey, _ *DatapathFragmentRow) bool {
			if int(k.Ifindex) == w.index["linkb"] {
				rows++
			}
			return true
		}))
		if rows != waiting {
			t.Errorf("%d of %d first fragments have rows", rows, waiting)
		}
	})
}
