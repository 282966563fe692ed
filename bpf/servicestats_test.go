package bpf

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// statsAre wants what an index has counted: the same as the NAT entries with that index. fillServices gives each
// backend the port of its Service as index.
func statsAre(index uint32, flows, requests, replies uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		sum, err := w.ServiceStat(index)
		must(t, err)
		if want := [2]uint64{requests, replies}; sum.Flows != flows || sum.Packets != want {
			t.Errorf("index %d has counted %d flows and packets %v, want %d and %v", index, sum.Flows, sum.Packets,
				flows, want)
		}
		var entries DatapathServiceStat
		must(t, Each(w.NatEntries, func(k *DatapathNatTuple, r *DatapathNatEntry) bool {
			if uint32(r.Stat) != index {
				return true
			}
			var reply DatapathNatReply
			own, err := w.ReadNatReply(k, r, &reply)
			must(t, err)
			if own && reply.Stat != r.Stat {
				t.Errorf("replies count into index %d, requests into %d", reply.Stat, r.Stat)
			}
			entries.Add(&DatapathServiceStat{Packets: r.Packets, Bytes: r.Bytes})
			entries.Add(&DatapathServiceStat{Packets: [2]uint64{0, uint64(reply.Packets)},
				Bytes: [2]uint64{0, reply.Bytes}})
			return true
		}))
		if sum.Packets != entries.Packets || sum.Bytes != entries.Bytes {
			t.Errorf("index %d has counted %+v, its flows %+v", index, sum, entries)
		}
	}
}

// changeMembers writes the values of all members anew.
func changeMembers(value func(uint32) uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		was := rowsIn[DatapathMemberKey, uint32](t, w.Members)
		for k, v := range was {
			must(t, w.Members.Put(k, value(v)))
		}
		t.Cleanup(func() {
			for k, v := range was {
				must(t, w.Members.Put(k, v))
			}
		})
	}
}

// nameCounters has the entries of all backends name the counters.
func nameCounters(c BackendStat) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		was := rowsIn[uint32, DatapathBackend](t, w.Backends)
		for id, b := range was {
			b.SetCounters(c)
			must(t, w.Backends.Put(id, b))
		}
		t.Cleanup(func() {
			for id, b := range was {
				must(t, w.Backends.Put(id, b))
			}
		})
	}
}

func statRows() []row {
	const request, reply = `eth router > node | ip world > lb | udp 40000 > 81`,
		`eth node2 > node | ip c > node | udp 8080 > 51000 | "reply"`
	return []row{
		{name: "from a wire", steps: []step{
			{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE", after: statsAre(portC, 1, 1, 0)},
			{at: "from_wire eth0", in: reply, want: "FORWARD_RESOLVE", after: statsAre(portC, 1, 1, 1)},
			{at: "from_wire eth0", in: request, want: "FORWARD_WIRE", after: statsAre(portC, 1, 2, 1)},
			{at: "from_wire eth0", in: reply, want: "FORWARD_WIRE", after: statsAre(portC, 1, 2, 2)},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 80`, want: "FORWARD_POD",
				after: statsAre(portB, 1, 1, 0)},
		}},
		{name: "from a pod", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 S`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 8080 > 40000 SA`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | tcp 40000 > 80 A | len 700`, want: "FORWARD_POD",
				after: statsAre(portB, 1, 2, 1)},
		}},
		xdpBegins("XDP",
			step{at: xdpAt, in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_WIRE",
				after: statsAre(portC, 2, 3, 0)},
			step{at: xdpAt, in: `eth router > node | ip world > lb | tcp 40000 > 81 A | len 300`, want: "FORWARD_WIRE"},
			step{at: "from_wire eth0", in: `eth node2 > node | ip c > node | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE"},
			step{at: xdpAt, in: `eth node2 > node | ip c > node | tcp 8080 > 51000 A | len 300`, want: "FORWARD_WIRE",
				after: statsAre(portC, 2, 4, 2)},
			step{at: xdpAt, in: `eth router > node | ip world > lb | tcp 40000 > 85 S`, want: "", out: "=",
				after: statsAre(portNone, 0, 0, 0)}),
		{name: "no index", steps: []step{
			{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE", after: statsAre(0, 1, 1, 0),
				before: changeMembers(func(uint32) uint32 { return MemberValue(0, true) })},
			{at: "from_wire eth0", in: reply, want: "FORWARD_RESOLVE", after: statsAre(0, 1, 1, 1)},
		}},
		{name: "an index in the backend's entry", steps: []step{
			{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE", after: statsAre(7, 1, 1, 0),
				before: nameCounters(BackendStat{Service: portC, Index: 7})},
			{at: "from_wire eth0", in: reply, want: "FORWARD_RESOLVE", after: statsAre(7, 1, 1, 1)},
		}},
		{name: "an index of another Service in the backend's entry", steps: []step{
			{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE", after: statsAre(portC, 1, 1, 0),
				before: nameCounters(BackendStat{Service: portC | 1<<16, Index: 7})},
		}},
		{name: "an index that does not exist", steps: []step{
			{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE", after: statsAre(0, 0, 0, 0),
				before: changeMembers(func(uint32) uint32 { return MemberValue(1<<15, true) })},
		}},
	}
}

// directStatRows: the first node counts requests, that of the backend replies.
func directStatRows() []row {
	begin := optioned("of a Service's node", func(optionIP) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 A`, want: "FORWARD_WIRE",
				after: statsAre(portC, 1, 2, 0)},
		}
	})
	inXDP := optioned("of a Service's node, XDP", func(optionIP) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`, want: "FORWARD_RESOLVE"},
			{at: xdpAt, in: `eth router > node | ip world > lb | tcp 40001 > 81 S`, want: "FORWARD_WIRE"},
			{at: xdpAt, in: `eth router > node | ip world > lb | udp 40000 > 81 | len 99`, want: "FORWARD_WIRE",
				after: statsAre(portC, 2, 3, 0)},
		}
	})
	for _, r := range inXDP {
		begin = append(begin, xdp(r))
	}
	request := func(ip optionIP, port uint8) string {
		return `eth node2 > node | ` + ip("world > b ttl 60", port) + ` | udp 40000 > 8080`
	}
	return append(append(begin, optioned("of the backend's node", func(ip optionIP) []step {
		return []step{
			{at: "from_wire eth0", in: request(ip, portB), want: "FORWARD_POD", after: statsAre(portB, 0, 0, 0)},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | udp 8080 > 40000 | "reply"`,
				want: "FORWARD_RESOLVE", after: statsAre(portB, 0, 0, 1)},
		}
	})...), optioned("not for external clients", func(ip optionIP) []step {
		return []step{{at: "from_wire eth0", in: request(ip, portB), want: "DROP_DSR_UNTRUSTED", out: "=",
			before: changeMembers(func(v uint32) uint32 { return MemberValue(MemberStat(v), false) })}}
	})...)
}

// TestRepliesOfTwoCPUs: where two CPUs have replies of one flow, and flush them all the time, service_stats is exact
// and the flow's counters are plausible.
func TestRepliesOfTwoCPUs(t *testing.T) {
	const each = 2000
	w := newWorld(t, settingsOf(servicing, func(s *Settings) { s.Hz = 1 }), onlyForwarding)
	leave := w.enter(t)
	w.run(t, packet.IPv4, step{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81`,
		want: "FORWARD_RESOLVE"})
	leave()
	frame := packettest.Frame(t, packet.IPv4, worldNames(), `eth node2 > node | ip c > node | udp 8080 > 51000`)
	var all unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &all))
	var senders sync.WaitGroup
	n := uint64(0)
	for cpu := 0; n < 2*each && cpu < 1024; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		n += each
		senders.Go(func() {
			if err := w.sendOn(t, cpu, frame, each); err != nil {
				t.Error(err)
			}
		})
	}
	senders.Wait()
	sum, err := w.ServiceStat(portC)
	must(t, err)
	if sum.Packets[1] != n || sum.Bytes[1] != n*uint64(len(frame)) {
		t.Errorf("counted %+v of %d replies", sum, n)
	}
	for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
		var reply DatapathNatReply
		own, err := w.ReadNatReply(&k, &r, &reply)
		must(t, err)
		if got := r.Packets[1] + uint64(reply.Packets); !own || got < n/2 || got > 2*n {
			t.Errorf("the flow has counted %d of %d replies, its own %v", got, n, own)
		}
	}
}

// sendOn runs from_wire on a CPU, n times.
func (w *world) sendOn(t testing.TB, cpu int, frame []byte, n int) error {
	defer w.enterAnyCPU(t)()
	var had, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &had); err != nil {
		return err
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer func() { _ = unix.SchedSetaffinity(0, &had) }() // the thread is the test's
	o := packettest.Options{Ifindex: uint32(w.index["eth0"])}
	for range n {
		if _, err := packettest.Run(w.FromWire, frame, o); err != nil {
			return fmt.Errorf("packet on CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// formerCreated is the layout of nat_entries before there was an index: the clock tick of creation had 64 bits.
type formerCreated struct {
	Backend, Snat                                     DatapathAddr
	BackendPort, NatPort                              uint16
	Flags                                             uint8
	TCPFlags                                          [2]uint8
	_                                                 uint8
	Service, BackendID, Seen, Refreshed, Epoch, Stamp uint32
	Created                                           uint64
	Packets, Bytes                                    [2]uint64
}

// TestFormerEntriesHaveNoIndex: flows that an agent without service_stats has begun go on, and so do its members.
func TestFormerEntriesHaveNoIndex(t *testing.T) {
	dir := bpffs(t)
	options := Options{Settings: settingsOf(servicing, direct), Sizes: Sizes{Translations: 64, Services: 64}, Dir: dir}
	d, err := Load(options)
	must(t, err)
	address := func(text string) DatapathAddr { return Addr(netip.MustParseAddr(text)) }
	key := DatapathNatTuple{Src: address("198.51.100.7"), Sport: Port(40000), Dst: address("203.0.113.50"),
		Dport: Port(80), Proto: unix.IPPROTO_TCP}
	const created = 1<<47 + 7
	former := formerCreated{Backend: address("10.0.1.3"), BackendPort: Port(8080), Snat: address("192.0.2.1"),
		NatPort: Port(25031), Flags: uint8(DatapathNatEntryFlagNAT_ENTRY_SNAT), BackendID: 5, Service: 9, Seen: 77,
		Created: created, Packets: [2]uint64{3, 2}}
	reply := struct {
		Request          DatapathNatTuple
		Flushed, Packets uint32
		Bytes            uint64
		TCPFlags         uint8
		_                [7]uint8
	}{Request: key, Packets: 4, Bytes: 500}
	member := DatapathMemberKey{Addr: former.Backend, Service: 9, Port: Port(8080), Proto: unix.IPPROTO_TCP}
	must(t, d.NatEntries.Put(key, former))
	var row DatapathNatEntry
	must(t, d.NatEntries.Lookup(key, &row))
	must(t, d.NatReplies.Put(ReplyTuple(&key, &row), reply))
	must(t, d.Members.Put(member, uint32(1)))
	must(t, d.Close())

	d, err = Load(options)
	must(t, err)
	defer d.Close()
	must(t, d.NatEntries.Lookup(key, &row))
	if row.Stat != 0 || row.CreatedAt() != created || row.Packets != [2]uint64{3, 2} || row.BackendId != 5 {
		t.Errorf("the entry is %+v, created %d", row, row.CreatedAt())
	}
	var now DatapathNatReply
	if own, err := d.ReadNatReply(&key, &row, &now); err != nil || !own || now.Stat != 0 || now.Packets != 4 ||
		now.Bytes != 500 {
		t.Errorf("the entry of replies is %+v, own %v, %v", now, own, err)
	}
	var value uint32
	must(t, d.Members.Lookup(member, &value))
	if value != MemberValue(0, true) {
		t.Errorf("the member is %d, want one without an index that external clients may get", value)
	}
	for _, name := range []string{"nat_entries", "nat_replies", "members"} {
		for _, m := range d.Maps {
			if m.Name == name && !m.Adopted {
				t.Errorf("%+v", m)
			}
		}
	}
}

// TestSocketsCountFlows: a socket and a backend are one flow, however many datagrams there are.
func TestSocketsCountFlows(t *testing.T) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		w := newSocketWorld(t, nil)
		w.services(f)
		must(t, w.d.Members.Put(DatapathMemberKey{Addr: Addr(loopback(f)), Service: 80, Port: Port(8001), Proto: 6},
			MemberValue(5, false)))
		for i, ask := range []ask{
			{"tcp", netip.AddrPortFrom(clusterIP(f), 80)},
			{"datagrams", netip.AddrPortFrom(clusterIP(f), 80)},
			{"tcp", netip.AddrPortFrom(clusterIP(f), 87)}, // has no index
			{"tcp", netip.AddrPortFrom(clusterIP(f), 82)}, // has no backend
		} {
			w.ask(ask)
			for index, want := range map[uint32]uint64{5: uint64(min(i+1, 2)), 0: uint64(min(max(i-1, 0), 1))} {
				sum, err := w.d.ServiceStat(index)
				must(t, err)
				if sum != (DatapathServiceStat{Flows: want}) {
					t.Errorf("after %s to port %d, index %d has counted %+v, want %d flows", ask.Network,
						ask.To.Port(), index, sum, want)
				}
			}
		}
	})
}
