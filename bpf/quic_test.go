package bpf

import (
	"fmt"
	"strings"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// fourOctets is the flag of frontends whose server IDs have four octets.
const fourOctets = DatapathFrontendFlagFRONTEND_QUIC / 15 * 4

// Server IDs: of c, which gets no new flows otherwise, of b, of a backend that is gone, and of none.
const serverC, serverB, serverGone, serverNone = "00000002", "00000001", "00000003", "00000004"

// addServers names the backends of the Service at portQUIC.
func (w *world) addServers(t testing.TB, id uint32, family int) {
	t.Helper()
	for server, backend := range map[uint64]uint32{1: id, 2: id - portQUIC + portC, 3: 1 << 31} {
		key := DatapathQuicServerKey{Id: server, Service: portQUIC, Port: id, Family: uint32(4 + 2*family)}
		must(t, w.QuicServers.Put(key, backend))
	}
}

func quic(s *Settings) { s.Quic = 1 }

func quicTables() []table {
	return []table{
		{name: "services, QUIC", settings: settingsOf(servicing, eightPorts, quic, longTimes), rows: quicRows()},
		{name: "services, QUIC, direct", settings: settingsOf(servicing, quic, direct, longTimes),
			rows: quicDirectRows()},
		{name: "services, QUIC off", settings: settingsOf(servicing, longTimes), rows: []row{
			one("no connection ID is read", "from_wire eth0", asks(40000, short(serverC)), "FORWARD_POD",
				quicToB(40000, short(serverC))),
		}},
	}
}

// short is a packet with a short header, whose connection ID has the server ID.
func short(server string) string { return "hex:4007" + server + "aabbccdd0102030405060708090a0b0c0d0e" }

// long is a packet with a long header: first octet, version, and a connection ID with the server ID.
func long(first, version, server string) string {
	return "hex:" + first + version + "0907" + server + "aabbccdd" + "0411223344" + "0102030405060708090a0b0c0d0e"
}

// asks is a client's packet to the Service.
func asks(port int, payload string) string {
	return fmt.Sprintf(`eth router > node | ip world > lb ttl 60 | udp %d > 91 | %s`, port, payload)
}

func quicToB(port int, payload string) string {
	return fmt.Sprintf(`eth gwb > b | ip world > b ttl 59 | udp %d > 8080 | %s`, port, payload)
}

// quicToC is the packet to c, with any NAT port.
func quicToC(payload string) string {
	return `eth node > node2 | ip node > c ttl 59 | udp 51000 > 8080 | ` + payload
}

// begins is a flow that goes to b as without QUIC, and moves one that its connection ID takes to c.
func begins(port int, payload string) step {
	return step{at: "from_wire eth0", in: asks(port, payload), want: "FORWARD_POD", out: quicToB(port, payload)}
}

func moves(at string, port int, payload string) step {
	return step{at: at, in: asks(port, payload), want: "FORWARD_QUIC FORWARD_WIRE", out: quicToC(payload),
		ignore: []string{"udp.sport"}}
}

// wayToC has the path to c cached.
func wayToC() []step {
	const in = `eth router > node | ip world > lb | udp 39999 > 81`
	return []step{{at: "from_wire eth0", in: in, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: in, want: "FORWARD_WIRE"}}
}

// usual are packets whose backend no connection ID selects.
func usual() []string {
	const v1, v2 = "00000001", "6b3343cf"
	return []string{
		short(serverNone), short(serverGone), strings.Replace(short(serverC), "4007", "40e7", 1), `"not QUIC"`,
		long("c3", v1, serverC), long("d3", v1, serverC), long("d3", v2, serverC), long("e3", v2, serverC),
		strings.Replace(long("e3", v1, serverC), "0907", "0407", 1),
		strings.Replace(long("e3", v1, serverC), "0907", "09ff", 1),
	}
}

func quicRows() []row {
	// Handshake of version 1, Retry of version 2, and anything of a version that is not known.
	routed := []string{short(serverC), strings.Replace(short(serverC), "4007", "00c7", 1),
		long("e3", "00000001", serverC), long("c3", "6b3343cf", serverC), long("c3", "0a0a0a0a", serverC)}
	var byTC, byXDP, not []step
	for i, payload := range routed {
		byTC = append(byTC, moves("from_wire eth0", 40000+i, payload))
		byXDP = append(byXDP, moves(xdpAt, 40000+i, payload))
	}
	for i, payload := range usual() {
		not = append(not, step{at: xdpAt, in: asks(40000+i, payload), want: "", out: "="}, begins(40000+i, payload))
	}
	rest := `eth router > node | ip4 world > lb frag 7 off 40 proto udp | len 8`
	first := `eth router > node | ip4 world > lb frag 7 off 0 mf | udp 40000 > 91 len 48 | ` +
		short(serverC) + strings.Repeat("00", 8)
	return []row{
		{name: "the client's port changes", steps: append(wayToC(), byTC...)},
		xdp(row{name: "the client's port changes, in XDP", steps: append(wayToC(), byXDP...)}),
		xdp(row{name: "the usual selection", steps: not}),
		xdp(row{name: "a known flow stays", steps: append(wayToC(), begins(40000, long("c3", "00000001", serverNone)),
			begins(40000, short(serverC)), moves("from_wire eth0", 40001, short(serverC)),
			step{at: xdpAt, in: asks(40001, short(serverB)), want: "FORWARD_WIRE", out: quicToC(short(serverB)),
				ignore: []string{"udp.sport"}})}),
		{name: "a backend that gets new flows too", steps: []step{{at: "from_wire eth0",
			in: asks(40000, short(serverB)), want: "FORWARD_QUIC FORWARD_POD", out: quicToB(40000, short(serverB))}}},
		xdp(row{name: "affinity to another backend", steps: append(wayToC(),
			step{at: "from_wire eth0", in: asks(40000, `"any"`), want: "FORWARD_POD", before: changesQUIC(
				func(f *DatapathFrontend) { f.Affinity = 60 })},
			moves("from_wire eth0", 40001, short(serverC)), moves(xdpAt, 40002, short(serverC)),
			begins(40003, `"any"`))}),
		{name: "traffic policy Local", steps: append(wayToC(),
			step{at: "from_wire eth0", in: asks(40000, short(serverC)), want: "FORWARD_POD", before: changesQUIC(
				func(f *DatapathFrontend) { f.Flags |= uint32(DatapathFrontendFlagFRONTEND_LOCAL_EXTERNAL) })},
			step{at: "from_wire eth0", in: asks(40001, short(serverB)), want: "FORWARD_QUIC FORWARD_POD"})},
		{name: "no backend for new flows", steps: append(wayToC(),
			step{at: "from_wire eth0", in: asks(40000, `"any"`), want: "DROP_NO_BACKEND REPLY_ICMP",
				before: changesQUIC(func(f *DatapathFrontend) { f.Set = [2]DatapathBackendSet{} })},
			moves("from_wire eth0", 40001, short(serverC)))},
		{name: "from a pod", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip | udp 40000 > 91 | ` + short(serverC),
				want: "FORWARD_QUIC FORWARD_RESOLVE",
				out:  `eth node > node2 | ip a > c ttl 63 | udp 40000 > 8080 | ` + short(serverC)}}},
		{name: "TCP", steps: []step{{at: "from_wire eth0",
			in: `eth router > node | ip world > lb | tcp 40000 > 91 S | ` + short(serverC), want: "FORWARD_POD"}}},
		only4(row{name: "fragments", steps: append(wayToC(),
			step{at: "from_wire eth0", in: first, want: "FORWARD_QUIC FORWARD_WIRE"},
			step{at: "from_wire eth0", in: rest, want: "FORWARD_WIRE"})}),
	}
}

// changesQUIC changes the frontends of the Service at portQUIC until the test ends.
func changesQUIC(change func(*DatapathFrontend)) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		rows := map[DatapathFrontendKey]DatapathFrontend{}
		must(t, Each(w.Frontends, func(k *DatapathFrontendKey, f *DatapathFrontend) bool {
			if f.Service == portQUIC {
				rows[*k] = *f
			}
			return true
		}))
		for k, f := range rows {
			change(&f)
			must(t, w.Frontends.Put(k, f))
		}
		t.Cleanup(func() {
			for k, f := range rows {
				must(t, w.Frontends.Put(k, f))
			}
		})
	}
}

// quicDirectRows: c answers the client itself.
func quicDirectRows() []row {
	rows := optioned("the client's port changes", func(ip optionIP) []step {
		steps := []step{{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 39999 > 81`,
			want: "FORWARD_RESOLVE"}}
		for i, at := range []string{"from_wire eth0", xdpAt} {
			steps = append(steps, step{at: at, in: asks(40000+i, short(serverC)), want: "FORWARD_QUIC FORWARD_WIRE",
				out: fmt.Sprintf(`eth node > node2 | %s | udp %d > 8080 | %s`, ip("world > c ttl 59", portQUIC),
					40000+i, short(serverC))})
		}
		return steps
	})
	for i := range rows {
		rows[i] = xdp(rows[i])
	}
	return rows
}

// A packet that ends within what is read of it, or whose UDP or IP length says so, is balanced as without QUIC, at tc
// and in XDP, which leaves it to tc: its backend is a pod of the node.
func TestShortQUICPackets(t *testing.T) {
	w := newWorld(t, settingsOf(servicing, eightPorts, quic, longTimes), onlyPrograms("from_wire", "from_wire_xdp"))
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		receivesXDP(t, w)
		w.run(t, f, wayToC()...)
		for _, payload := range []string{short(serverC), long("e3", "00000001", serverC)} {
			for n := 1; n < 20; n++ {
				w.forget(t)
				w.run(t, f, wayToC()...)
				cut := payload[:len("hex:")+2*n]
				inXDP, atTC := moves(xdpAt, 40000, cut), moves("from_wire eth0", 40001, cut)
				if n < 15 {
					inXDP, atTC = step{at: xdpAt, in: asks(40000, cut), out: "="}, begins(40001, cut)
				}
				w.run(t, f, inXDP, atTC)
			}
		}
		for _, lies := range []string{
			strings.Replace(asks(40003, short(serverC)), "> 91", "> 91 len 22", 1),
			strings.Replace(asks(40004, `hex:40 | pad `+strings.Replace(short(serverC), "4007", "07", 1)), "> 91",
				"> 91 len 48", 1),
		} {
			w.run(t, f, step{at: xdpAt, in: lies, out: "="}, step{at: "from_wire eth0", in: lies, want: "FORWARD_POD"})
		}
	})
}
