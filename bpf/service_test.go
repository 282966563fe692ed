package bpf

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// servicing translates for Services, whose clients are behind one port of the node: packets can then be written down.
func servicing(s *Settings) {
	s.Services, s.LbPortMin, s.LbPortMax, s.NodePortMin, s.NodePortMax = 1, 51000, 51000, 30000, 32767
}

func serviceTables() []table {
	inside := append(clientRows(), backendlessRows()...)
	return []table{
		{name: "services", settings: settingsOf(servicing), rows: append(append(inside, outsideRows()...),
			serviceErrorRows()...)},
		{name: "services, masquerade", settings: settingsOf(servicing, masquerading),
			rows: append(append(append(inside, outsideRows()...), worldBackendRows()...), serviceErrorRows()...)},
		{name: "services, tracking", settings: settingsOf(servicing, tracking), rows: append(inside, outsideRows()...)},
		{name: "services, across families", settings: settingsOf(servicing),
			rows: slices.Concat(crossRows(), crossErrorRows(), crossXDPRows())},
		{name: "services, across families, direct", settings: settingsOf(servicing, direct),
			rows: append(crossRows(), crossErrorRows()...)},
		{name: "services, XDP", settings: settingsOf(servicing), rows: xdpRows()},
		{name: "services, NAT entries", settings: settingsOf(servicing, longTimes), rows: natRows()},
		{name: "services, statistics", settings: settingsOf(servicing, longTimes), rows: statRows()},
		{name: "services, XDP, few ports", settings: settingsOf(servicing, eightPorts), rows: portsRows()},
		{name: "services, XDP, few ports, direct", settings: settingsOf(servicing, eightPorts, hybrid),
			rows: portsRows()},
		{name: "services, pods that go", settings: settingsOf(servicing),
			rows: []row{{name: "of pods that are others by now", steps: []step{
				{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80`, want: "FORWARD_POD"},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 8080 > 40000`, want: "FORWARD_POD",
					out: `eth gw > a | ip b > a ttl 63 | udp 8080 > 40000`, before: forgets},
			}}}},
		{name: "services, silent", settings: settingsOf(servicing, silent), rows: silentRows()},
		{name: "services, node ports", settings: settingsOf(servicing), rows: nodePortRows()},
		{name: "services, legacy", settings: settingsOf(servicing, legacy), rows: legacyServiceRows()},
		{name: "services, tunnel", settings: settingsOf(servicing, tunnel4), rows: tunnelServiceRows()},
	}
}

// Each port of the Services has one backend, or says why it has none.
const (
	portB       = 80 // on this node
	portC       = 81 // on node2
	portA       = 82
	portWorld   = 83
	portNode    = 84 // the host itself
	portNone    = 85
	portElse    = 86 // none on this node
	portRanges  = 87 // for clients around world only
	portTargets = 88 // the backend has the same port
	portCrossC  = 89 // the backend is of the other family
	portCrossB  = 90
	portQUIC    = 91 // b, and c by connection ID
)

type testService struct {
	port    uint16
	backend string
	flags   DatapathFrontendFlag
}

func testServices() []testService {
	const dropBoth = DatapathFrontendFlagFRONTEND_DROP_EXTERNAL | DatapathFrontendFlagFRONTEND_DROP_INTERNAL
	return []testService{
		{portB, "b", 0}, {portC, "c", 0}, {portA, "a", 0}, {portWorld, "world2", 0}, {portNode, "node", 0},
		{portNone, "", 0}, {portElse, "", dropBoth}, {portRanges, "b", DatapathFrontendFlagFRONTEND_RANGES},
		{portTargets, "c", 0}, {portCrossC, "c", 0}, {portCrossB, "b", 0},
		{portQUIC, "b", fourOctets},
	}
}

// fillServices makes the same Services of vip for the inside, of lb for both, and of node ports from 30000 on.
func (w *world) fillServices(t testing.TB) {
	t.Helper()
	n := worldNames()
	const both = DatapathFrontendFlagFRONTEND_EXTERNAL | DatapathFrontendFlagFRONTEND_INTERNAL
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for i, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		for family, node := range []netip.Addr{any4, any6} {
			for _, s := range testServices() {
				id := uint32(i)<<16 | uint32(family)<<12 | uint32(s.port)
				row := w.addSet(t, id, s, proto, family)
				if s.port == portQUIC {
					w.addServers(t, id, family)
				}
				for _, f := range []struct {
					addr  netip.Addr
					port  uint16
					flags DatapathFrontendFlag
				}{{families(n["vip"])[family], s.port, DatapathFrontendFlagFRONTEND_INTERNAL},
					{families(n["lb"])[family], s.port, both}, {node, 30000 + s.port, both}} {
					row.Flags = uint32(f.flags | s.flags)
					must(t, w.MarkFrontend(f.addr))
					must(t, w.Frontends.Put(DatapathFrontendKey{Addr: Addr(f.addr), Port: be16(f.port),
						Proto: proto}, row))
					must(t, w.Frontends.Put(DatapathFrontendKey{Addr: Addr(f.addr)},
						DatapathFrontend{Flags: uint32(f.flags)}))
				}
			}
		}
	}
	for _, a := range families(n["world"]) {
		key := DatapathSourceRangeKey{Service: portRanges, Length: 32 + 128}
		prefix := Prefix(netip.PrefixFrom(a, a.BitLen()))
		key.Addr = prefix.Addr
		must(t, w.SourceRanges.Put(key, uint32(1)))
	}
}

func (w *world) addSet(t testing.TB, id uint32, s testService, proto uint8, family int) DatapathFrontend {
	t.Helper()
	row := DatapathFrontend{Service: uint32(s.port), Port: id}
	if s.backend == "" {
		return row
	}
	if s.port == portCrossB || s.port == portCrossC {
		family = 1 - family
	}
	b := DatapathBackend{Addr: Addr(families(worldNames()[s.backend])[family]), Port: be16(8080), Proto: proto}
	if s.port == portTargets {
		b.Port = be16(portTargets)
	}
	must(t, w.Backends.Put(id, b))
	must(t, w.Members.Put(DatapathMemberKey{Addr: b.Addr, Service: uint32(s.port), Port: b.Port, Proto: proto},
		MemberValue(uint32(s.port), true)))
	choice := DatapathBackendSlotsRow{}
	choice.Backend[0] = id
	must(t, w.BackendSlots.Put(DatapathBackendSlotsKey{Set: id}, choice))
	set := DatapathBackendSet{Id: id, Count: 1}
	row.Set = [2]DatapathBackendSet{set, set}
	return row
}

// translationsAre counts rows.
func translationsAre(want int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		n := 0
		must(t, Each(w.NatEntries, func(*DatapathNatTuple, *DatapathNatEntry) bool { n++; return true }))
		if n != want {
			t.Fatalf("%d translations, want %d", n, want)
		}
	}
}

// forgets gives the slots of a and b to other pods, which have the same addresses.
func forgets(t testing.TB, w *world) {
	t.Helper()
	memory, err := w.Epochs.Memory()
	must(t, err)
	for _, slot := range []uint16{2, 3} {
		was := []byte{0}
		_, err := memory.ReadAt(was, translatedOffset+int64(slot))
		must(t, err)
		if was[0] != 1 {
			t.Errorf("slot %d is %d, want 1", slot, was[0])
		}
		must(t, (&Epochs{Map: w.Epochs}).Forget(slot))
	}
}

// clientRows: pod a is the client, by no socket hook.
func clientRows() []row {
	return append([]row{
		{name: "to a pod of this node", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | tcp 40000 > 80 S seq 1 mss 1460`,
				want: "FORWARD_POD", out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 8080 S seq 1 mss 1460`,
				after: translationsAre(1)},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a ttl 64 | tcp 8080 > 40000 SA seq 5 ack 2`,
				want: "FORWARD_POD", out: `eth gw > a | ip vip > a ttl 63 | tcp 80 > 40000 SA seq 5 ack 2`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | tcp 40000 > 80 PA seq 2 | "hello"`,
				want: "FORWARD_POD", out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 8080 PA seq 2 | "hello"`,
				after: translationsAre(1)},
		}},
		{name: "to a pod of node2", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 81 | "q"`, want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > c ttl 63 | udp 40000 > 8080 | "q"`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a ttl 60 | udp 8080 > 40000 | "r"`,
				want: "FORWARD_POD", out: `eth gw > a | ip vip > a ttl 59 | udp 81 > 40000 | "r"`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 81 nosum | "q"`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip a > c ttl 63 | udp 40000 > 8080 nosum | "q"`,
				after: translationsAre(1)},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a ttl 60 | udp 8081 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 59 | udp 8081 > 40000`},
		}},
		{name: "to itself", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | tcp 40000 > 82 S`, want: "FORWARD_POD",
				out: `eth gw > a | ip gw > a ttl 63 | tcp 51000 > 8080 S`},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw ttl 64 | tcp 8080 > 51000 SA`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | tcp 82 > 40000 SA`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | tcp 40000 > 82 A`, want: "FORWARD_POD",
				out: `eth gw > a | ip gw > a ttl 63 | tcp 51000 > 8080 A`, after: translationsAre(1)},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw ttl 64 | tcp 9999 > 51000 A`, want: "FORWARD_STACK",
				out: "="},
		}},
		{name: "to the host", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | tcp 40000 > 84 S`, want: "FORWARD_STACK",
				out: `eth a > gw | ip a > node ttl 64 | tcp 40000 > 8080 S`},
			{at: "to_pod linka", in: `eth gw > a | ip node > a ttl 64 | tcp 8080 > 40000 SA`, want: "",
				out: `eth gw > a | ip vip > a ttl 64 | tcp 84 > 40000 SA`},
		}},
		{name: "a node port, on the node's own address", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > node ttl 64 | udp 40000 > 30080`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 40000 > 8080`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a ttl 64 | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip node > a ttl 63 | udp 30080 > 40000`},
		}},
	}, clientPortRows()...)
}

// portAgainRow is a connection to a Service, whose client then uses its port to connect to the backend itself.
func portAgainRow(name, flags, reply string, left int) row {
	return row{name: "the port again, for the backend, " + name, steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`, want: "FORWARD_POD"},
		{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD"},
		{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 ` + flags, want: "FORWARD_POD"},
		{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 8080 S`, want: "FORWARD_POD",
			after: translationsAre(left)},
		{at: "from_pod linkb", in: `eth b > gwb | ip b > a ttl 64 | tcp 8080 > 40000 SA`, want: "FORWARD_POD",
			out: `eth gw > a | ` + reply + ` > 40000 SA`},
	}}
}

func clientPortRows() []row {
	return []row{
		one("sctp, the same port", "from_pod linka", `eth a > gw | ip a > vip | sctp 40000 > 88 init`,
			"FORWARD_RESOLVE", `eth node > node2 | ip a > c ttl 63 | sctp 40000 > 88 init`),
		{name: "sctp, another port", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | sctp 40000 > 80 vtag 0 init | len 24`,
				want: "FORWARD_POD", out: `eth gwb > b | ip a > b ttl 63 | sctp 40000 > 8080 vtag 0 init | len 24`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | sctp 8080 > 40000 vtag 7 init-ack | len 300`,
				want: "FORWARD_POD", out: `eth gw > a | ip vip > a ttl 63 | sctp 80 > 40000 vtag 7 init-ack | len 300`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | sctp 40000 > 80 vtag 9 data sum 0 | len 1400`,
				want: "FORWARD_POD",
				out:  `eth gwb > b | ip a > b ttl 63 | sctp 40000 > 8080 vtag 9 data sum 0 | len 1400`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | sctp 40000 > 80 vtag 9 data badsum | len 4`,
				want: "FORWARD_POD",
				out:  `eth gwb > b | ip a > b ttl 63 | sctp 40000 > 8080 vtag 9 data badsum | len 4`},
		}},
		one("another port of the node", "from_pod linka", `eth a > gw | ip a > node | tcp 40000 > 22 S`,
			"FORWARD_STACK", "="),
		portAgainRow("closed", "R", `ip b > a ttl 63 | tcp 8080`, 0),
		portAgainRow("open", "A", `ip vip > a ttl 63 | tcp 80`, 1),
		{name: "two Services from one port", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 40000 > 8080`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 81`, want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > c ttl 63 | udp 40000 > 8080`, after: translationsAre(2)},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | udp 81 > 40000`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | udp 80 > 40000`},
			{at: "from_pod linka", in: `eth a > gw | ip a > lb | udp 40000 > 80`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 51000 > 8080`, after: translationsAre(3)},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 8080 > 51000`, want: "FORWARD_POD",
				out: `eth gw > a | ip lb > a ttl 63 | udp 80 > 40000`},
			{at: "from_pod linka", in: `eth a > gw | ip a > lb | udp 40000 > 80`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 51000 > 8080`, after: translationsAre(3)},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | udp 40000 > 8080`, after: translationsAre(3)},
		}},
		{name: "two Services from one port, on node2", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 81`, want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > c ttl 63 | udp 40000 > 8080`},
			{at: "from_pod linka", in: `eth a > gw | ip a > lb | udp 40000 > 81`, want: "FORWARD_WIRE",
				out: `eth node > node2 | ip a > c ttl 63 | udp 51000 > 8080`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 8080 > 51000`, want: "FORWARD_POD",
				out: `eth gw > a | ip lb > a ttl 63 | udp 81 > 40000`},
		}},
		{name: "two Services from one port, one after the other", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 8080 S`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 RA`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 63 | tcp 80 > 40000 RA`},
			{at: "from_pod linka", in: `eth a > gw | ip a > lb | tcp 40000 > 80 S`, want: "FORWARD_POD",
				out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 8080 S`, after: translationsAre(1)},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD",
				out: `eth gw > a | ip lb > a ttl 63 | tcp 80 > 40000 SA`},
		}},
		one("the last hop", "from_pod linka", `eth a > gw | ip a > vip ttl 1 | udp 40000 > 80`,
			"DROP_TTL REPLY_ICMP", ""),
	}
}

func backendlessRows() []row {
	return []row{
		one("no backend, tcp", "from_pod linka", `eth a > gw | ip a > vip | tcp 40000 > 85 S seq 7`,
			"DROP_NO_BACKEND REPLY_RESET", `eth gw > a | ip vip > a ttl 64 df | tcp 85 > 40000 RA ack 8 win 0`),
		one("no backend", "from_pod linka", `eth a > gw | ip a > vip | udp 40000 > 85`, "DROP_NO_BACKEND REPLY_ICMP",
			`eth gw > a | ip vip > a ttl 64 df | icmp unreachable port | ip a > vip | udp 40000 > 85`),
		one("no backend on this node", "from_pod linka", `eth a > gw | ip a > vip | tcp 40000 > 86 S`,
			"DROP_NO_LOCAL_BACKEND", "="),
		one("no such port", "from_pod linka", `eth a > gw | ip a > vip | udp 40000 > 99`, "DROP_NO_SERVICE REPLY_ICMP",
			`eth gw > a | ip vip > a ttl 64 df | icmp unreachable port | ip a > vip | udp 40000 > 99`),
		one("no backend, from outside", "from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 85`,
			"DROP_NO_BACKEND REPLY_ICMP",
			`eth node > router | ip lb > world ttl 64 df | icmp unreachable port | ip world > lb | udp 40000 > 85`),
		{name: "the backend is gone", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S seq 1`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 PA seq 2 ack 7 | "hello"`,
				want: "DROP_BACKEND_GONE REPLY_RESET",
				out:  `eth gw > a | ip vip > a ttl 64 df | tcp 80 > 40000 R seq 7 win 0`, before: backendsGo},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 FU seq 2 | "hello"`,
				want: "DROP_BACKEND_GONE REPLY_RESET",
				out:  `eth gw > a | ip vip > a ttl 64 df | tcp 80 > 40000 RA ack 8 win 0`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 R seq 2`, want: "DROP_BACKEND_GONE",
				out: "="},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S seq 1`, want: "FORWARD_POD",
				after: translationsAre(1)},
		}},
		{name: "the backend is gone, udp", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 80`, want: "FORWARD_POD",
				before: backendsGo, after: translationsAre(1)},
		}},
	}
}

// silent tells clients of Services without backends nothing.
func silent(s *Settings) { s.NoBackendDrop = 1 }

func silentRows() []row {
	return []row{
		one("no backend, tcp", "from_pod linka", `eth a > gw | ip a > vip | tcp 40000 > 85 S seq 7`,
			"DROP_NO_BACKEND", "="),
		one("no backend", "from_pod linka", `eth a > gw | ip a > vip | udp 40000 > 85`, "DROP_NO_BACKEND", "="),
		one("no backend, from outside, tcp", "from_wire eth0", `eth router > node | ip world > lb | tcp 40000 > 85 S`,
			"DROP_NO_BACKEND", "="),
		one("no backend, from outside", "from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 85`,
			"DROP_NO_BACKEND", "="),
		one("no backend, at a node port", "from_wire eth0", `eth router > node | ip world > node | udp 40000 > 30085`,
			"DROP_NO_BACKEND", "="),
		one("no such port", "from_pod linka", `eth a > gw | ip a > vip | udp 40000 > 99`, "DROP_NO_SERVICE REPLY_ICMP",
			`eth gw > a | ip vip > a ttl 64 df | icmp unreachable port | ip a > vip | udp 40000 > 99`),
	}
}

// backendsGo marks all rows, as the agent does when a backend goes.
func backendsGo(t testing.TB, w *world) {
	t.Helper()
	var list []DatapathNatTuple
	must(t, Each(w.NatEntries, func(k *DatapathNatTuple, _ *DatapathNatEntry) bool {
		list = append(list, *k)
		return true
	}))
	for _, k := range list {
		var v DatapathNatEntry
		must(t, w.NatEntries.Lookup(k, &v))
		v.Flags |= uint8(DatapathNatEntryFlagNAT_ENTRY_GONE)
		must(t, w.NatEntries.Put(k, v))
	}
}
