package bpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// socketRow is one thing that an application asks for.
type socketRow struct {
	name    string
	network string
	to      func(packet.Family) netip.Addr
	port    uint16
	servers []uint16 // the servers that may answer; none: refused
	errno   string   // what the application is told then
	counted DatapathSocketOutcome
}

const (
	anyway  = uint32(DatapathFrontendFlagFRONTEND_INTERNAL | DatapathFrontendFlagFRONTEND_EXTERNAL)
	counted = DatapathSocketOutcomeSOCKET_TRANSLATED
	ignored = DatapathSocketOutcomeSOCKET_OUTCOMES // nothing is counted
)

func clusterIP(f packet.Family) netip.Addr { return pick(f, "10.96.0.1", "fd00:96::1") }
func nodeIP(f packet.Family) netip.Addr    { return pick(f, "192.168.0.1", "fd00::1") }
func peerIP(f packet.Family) netip.Addr    { return pick(f, "192.168.0.2", "fd00::2") }
func anyIP(f packet.Family) netip.Addr     { return pick(f, "0.0.0.0", "::") }
func mappedIP(packet.Family) netip.Addr    { return netip.MustParseAddr("::ffff:10.96.0.1") }

// socketRows: see services for what is where.
func socketRows() []socketRow {
	refused := DatapathSocketOutcomeSOCKET_NO_BACKEND
	return []socketRow{
		{"TCP", "tcp", clusterIP, 80, []uint16{8001}, "", counted},
		{"UDP, connected", "udp", clusterIP, 80, []uint16{8001}, "", counted},
		{"UDP, not connected", "datagram", clusterIP, 80, []uint16{8001}, "", counted},
		{"one of two", "tcp", clusterIP, 81, []uint16{8001, 8002}, "", counted},
		{"no backend", "tcp", clusterIP, 82, nil, "connection refused", refused},
		{"no backend, UDP", "datagram", clusterIP, 82, nil, "connection refused", refused},
		{"none of this node", "tcp", clusterIP, 83, nil, "no route to host", DatapathSocketOutcomeSOCKET_NONE_HERE},
		{"a backend that has just gone", "tcp", clusterIP, 84, []uint16{8001}, "", counted},
		// by the kernel: no socket listens
		{"not for the inside", "tcp", nodeIP, 85, nil, "connection refused", ignored},
		{"node port on loopback", "tcp", loopback, 30080, []uint16{8001}, "", counted},
		{"node port on the node's address", "datagram", nodeIP, 30080, []uint16{8001}, "", counted},
		{"node port on another node's address", "tcp", peerIP, 30080, []uint16{8001}, "", counted},
		{"this node's port on its address", "tcp", nodeIP, 30081, []uint16{8001}, "", counted},
		{"this node's port on another node's address", "tcp", peerIP, 30081, nil, "unreachable", ignored},
		{"no Service's port", "tcp", loopback, 8002, []uint16{8002}, "", ignored},
		{"a health check", "marked", loopback, 30080, nil, "connection refused", ignored},
		{"client affinity", "tcp", clusterIP, 86, []uint16{8001, 8002}, "", counted},
		{"to one port of a Service", "tcp", clusterIP, 87, []uint16{8001}, "", counted},
		{"to another port of it", "tcp", clusterIP, 88, []uint16{8002}, "", counted},
	}
}

func (w *socketWorld) services(f packet.Family) {
	w.t.Helper()
	here := uint32(DatapathFrontendFlagFRONTEND_DROP_INTERNAL)
	for _, s := range []struct {
		addr  func(packet.Family) netip.Addr
		port  uint16
		row   DatapathFrontend
		ports []uint16
	}{
		{clusterIP, 80, DatapathFrontend{Flags: anyway}, []uint16{8001}},
		{clusterIP, 81, DatapathFrontend{Flags: anyway}, []uint16{8001, 8002}},
		{clusterIP, 82, DatapathFrontend{Flags: anyway}, nil},
		{clusterIP, 83, DatapathFrontend{Flags: anyway | here}, nil},
		{clusterIP, 84, DatapathFrontend{Flags: anyway}, []uint16{8001, 8001, 8001, gone}},
		{nodeIP, 85, DatapathFrontend{Flags: uint32(DatapathFrontendFlagFRONTEND_EXTERNAL)}, []uint16{8001}},
		{clusterIP, 86, DatapathFrontend{Flags: anyway, Affinity: 3600}, []uint16{8001, 8002}},
		{clusterIP, 87, DatapathFrontend{Flags: anyway, Affinity: 3600, Service: 87, Port: 1}, []uint16{8001}},
		{clusterIP, 88, DatapathFrontend{Flags: anyway, Affinity: 3600, Service: 87, Port: 2}, []uint16{8002}},
		{anyIP, 30080, DatapathFrontend{Flags: anyway}, []uint16{8001}},
		{anyIP, 30081, DatapathFrontend{Flags: anyway | uint32(DatapathFrontendFlagFRONTEND_THIS_NODE)},
			[]uint16{8001}},
	} {
		w.frontend(f, netip.AddrPortFrom(s.addr(f), s.port), s.row, s.ports...)
	}
	must(w.t, w.d.Endpoints.Put(Addr(nodeIP(f)), DatapathEndpoint{Flags: uint8(DatapathEndpointFlagENDPOINT_HOST)}))
	peer := DatapathPrefix{Flags: uint32(DatapathPrefixFlagPREFIX_CLUSTER | DatapathPrefixFlagPREFIX_NODE)}
	must(w.t, w.d.Prefixes.Put(Prefix(netip.PrefixFrom(peerIP(f), peerIP(f).BitLen())), peer))
	for _, port := range []uint16{8001, 8002} {
		w.serve(netip.AddrPortFrom(loopback(f), port))
	}
}

// TestSockets has processes in a cgroup ask for Services.
//
//	┌─ cgroup, namespace ────────────────────────┐
//	│ process ─► connect4 ─► 127.0.0.1:8001 8002 │
//	└────────────────────────────────────────────┘
func TestSockets(t *testing.T) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		w := newSocketWorld(t, nil)
		w.services(f)
		for _, r := range socketRows() {
			t.Run(r.name, func(t *testing.T) { w.check(t, r, f) })
		}
		w.checkOrigins(t)
	})
}

// checkOrigins wants each row to name the backend that the socket was sent to.
func (w *socketWorld) checkOrigins(t *testing.T) {
	t.Helper()
	n := 0
	must(t, Each(w.d.Origins, func(key *DatapathOriginKey, asked *DatapathOrigin) bool {
		var b DatapathBackend
		if err := w.d.Backends.Lookup(asked.Backend, &b); err != nil || b.Addr != key.Addr || b.Port != key.Port {
			t.Errorf("a socket at %s port %d was sent to backend %d: %+v, %v", key.Addr.Netip(), Port(key.Port),
				asked.Backend, b, err)
		}
		n++
		return true
	}))
	if n == 0 {
		t.Error("no socket was sent to a backend")
	}
}

func (w *socketWorld) check(t *testing.T, r socketRow, f packet.Family) {
	t.Helper()
	to := netip.AddrPortFrom(r.to(f), r.port)
	var before uint64
	if r.counted != ignored {
		before = w.outcome(r.counted)
	}
	got := w.ask(ask{r.network, to})
	if r.counted != ignored && w.outcome(r.counted) != before+1 {
		t.Errorf("counted %d times as outcome %d, want once more than %d", w.outcome(r.counted), r.counted, before)
	}
	if len(r.servers) == 0 {
		if !strings.Contains(got.Error, r.errno) && (HaveSetRetval() || !strings.Contains(got.Error, "not permitted")) {
			t.Errorf("error %q, want %q", got.Error, r.errno)
		}
		return
	}
	if got.Error != "" || !slices.Contains(r.servers, got.Server) ||
		got.Peer != netip.AddrPortFrom(to.Addr().Unmap(), to.Port()) {
		t.Errorf("%+v, want an answer of one of %v from %s", got, r.servers, to)
	}
}

// TestSocketsMapped asks by an IPv6 socket for an IPv4 Service.
func TestSocketsMapped(t *testing.T) {
	w := newSocketWorld(t, nil)
	w.services(packet.IPv4)
	for _, network := range []string{"mapped", "datagram"} {
		w.check(t, socketRow{network: network, to: mappedIP, port: 80, servers: []uint16{8001}, counted: counted},
			packet.IPv6)
	}
}

// TestSocketsStayWithABackend asks often: with affinity there is one answer, without it both.
func TestSocketsStayWithABackend(t *testing.T) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		w := newSocketWorld(t, nil)
		w.services(f)
		for port, want := range map[uint16]int{86: 1, 81: 2} {
			seen := map[uint16]bool{}
			for range 24 { // both, but once in 8 million runs
				seen[w.ask(ask{"tcp", netip.AddrPortFrom(clusterIP(f), port)}).Server] = true
			}
			if len(seen) != want || seen[0] {
				t.Errorf("port %d: answers of %v, want %d", port, seen, want)
			}
		}
	})
}

// TestSocketsOfTheHostOnly leaves alone what is not in the host's namespace.
func TestSocketsOfTheHostOnly(t *testing.T) {
	for _, host := range []bool{true, false} {
		known := true
		w := newSocketWorld(t, func(w *socketWorld, s *Settings) {
			w.in(func() (err error) { s.NetnsCookie, err = NetnsCookie(); return err })
			known = s.NetnsCookie != 0
			s.SocketHostOnly = 1
			if !host {
				s.NetnsCookie++
			}
		})
		w.services(packet.IPv4)
		row := socketRow{network: "tcp", to: clusterIP, port: 80, errno: "unreachable", counted: ignored}
		if host && known { // before kernel 5.14 no namespace can be told from another, and none is served
			row.servers, row.counted = []uint16{8001}, counted
		}
		w.check(t, row, packet.IPv4)
	}
}

// TestSocketOfOneFamily has a Service whose backend an IPv4 socket can't follow to.
func TestSocketOfOneFamily(t *testing.T) {
	w := newSocketWorld(t, nil)
	w.services(packet.IPv4)
	must(t, w.d.Backends.Put(uint32(8001), DatapathBackend{Addr: Addr(netip.MustParseAddr("::1")), Port: Port(8001),
		Proto: 6}))
	row := socketRow{network: "tcp4", to: clusterIP, port: 80, errno: "unreachable",
		counted: DatapathSocketOutcomeSOCKET_FAMILY}
	w.check(t, row, packet.IPv4)
}
