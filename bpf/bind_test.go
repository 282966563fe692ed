package bpf

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// bind does what package net does not always do: an address of IPv6, also a mapped one or ::, is that of a socket of
// IPv6, which takes both families.
func (a ask) bind(kind int) error {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.To.Addr().As16(), Port: int(a.To.Port())})
	if a.To.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Addr: a.To.Addr().As4(), Port: int(a.To.Port())}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, at)
}

// protected loads what protects node ports of the world's namespace.
func protected(w *socketWorld, s *Settings) {
	w.in(func() (err error) { s.NetnsCookie, err = NetnsCookie(); return err })
	if s.NetnsCookie != 0 {
		s.BindProtection = 1
	}
}

// nodePortTaken makes a node port of one protocol.
func (w *socketWorld) nodePortTaken(f packet.Family, port uint16, proto uint8) {
	w.t.Helper()
	must(w.t, w.d.Frontends.Put(DatapathFrontendKey{Addr: Addr(anyIP(f)), Port: Port(port), Proto: proto},
		DatapathFrontend{Flags: anyway}))
}

// TestBind has processes listen where a Service has a node port.
//
//	┌─ cgroup ─────────────────────────────────────────┐
//	│ namespace of the host: process ─► bind4 ─► 30080 │ refused
//	│ another namespace:     process ─► bind4 ─► 30080 │
//	└──────────────────────────────────────────────────┘
func TestBind(t *testing.T) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		w := newSocketWorld(t, protected)
		w.services(f)
		w.nodePortTaken(f, 30090, unix.IPPROTO_UDP)
		mapped := netip.AddrFrom16(nodeIP(packet.IPv4).As16())
		other := loopback(packet.IPv6)
		if f == packet.IPv6 {
			other = loopback(packet.IPv4)
		}
		for _, r := range []struct {
			name    string
			network string
			at      netip.Addr
			port    uint16
			taken   bool
		}{
			{"any address", "bind TCP", anyIP(f), 30080, true},
			{"any address, UDP", "bind UDP", anyIP(f), 30080, true},
			{"loopback", "bind TCP", loopback(f), 30080, true},
			{"the node's address", "bind UDP", nodeIP(f), 30080, true},
			{"any address of both families", "bind TCP", netip.IPv6Unspecified(), 30080, true},
			{"an IPv4 address by an IPv6 socket", "bind TCP", mapped, 30080, f == packet.IPv4},
			{"any IPv4 address by an IPv6 socket", "bind TCP", netip.AddrFrom16(anyIP(packet.IPv4).As16()), 30080,
				f == packet.IPv4},
			{"the other family", "bind TCP", other, 30080, false},
			{"another port", "bind TCP", anyIP(f), 30082, false},
			{"any port", "bind TCP", anyIP(f), 0, false},
			{"a port of UDP", "bind UDP", anyIP(f), 30090, true},
			{"the same of TCP", "bind TCP", anyIP(f), 30090, false},
			{"a ClusterIP's port", "bind TCP", anyIP(f), 80, false},
		} {
			t.Run(r.name, func(t *testing.T) {
				w.binds(t, ask{r.network, netip.AddrPortFrom(r.at, r.port)}, r.taken && w.bind)
			})
		}
		must(t, w.d.Frontends.Delete(DatapathFrontendKey{Addr: Addr(anyIP(f)), Port: Port(30090),
			Proto: unix.IPPROTO_UDP}))
		t.Run("the Service has gone", func(t *testing.T) {
			w.binds(t, ask{"bind UDP", netip.AddrPortFrom(anyIP(f), 30090)}, false)
		})
		w.makeNamespace()
		t.Run("a pod", func(t *testing.T) { w.binds(t, ask{"bind TCP", netip.AddrPortFrom(anyIP(f), 30080)}, false) })
	})
}

func (w *socketWorld) binds(t *testing.T, a ask, taken bool) {
	t.Helper()
	before := w.outcome(DatapathSocketOutcomeSOCKET_PORT_TAKEN)
	got, want, errno := w.ask(a), before, ""
	if taken {
		want, errno = before+1, "address already in use"
		if !HaveSetRetval() {
			errno = "operation not permitted"
		}
	}
	if n := w.outcome(DatapathSocketOutcomeSOCKET_PORT_TAKEN); n != want {
		t.Errorf("counted %d, want %d", n, want)
	}
	if got.Error != errno && !strings.HasSuffix(got.Error, ": "+errno) {
		t.Errorf("error %q, want %q", got.Error, errno)
	}
}

// TestBindOff has no program at bind where nothing is to be protected.
func TestBindOff(t *testing.T) {
	w := newSocketWorld(t, nil)
	w.services(packet.IPv4)
	w.binds(t, ask{"bind TCP", netip.AddrPortFrom(anyIP(packet.IPv4), 30080)}, false)
	must(t, w.d.AttachSockets(w.cgroup, true))
	must(t, w.d.AttachSockets(w.cgroup, false))
	for _, h := range w.d.socketHooks() {
		if _, err := os.Stat(w.d.socketPin(h.name)); (err == nil) == h.binds() {
			t.Errorf("%s: pin %v", h.name, err)
		}
	}
}
