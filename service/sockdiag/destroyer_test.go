package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

// tables are the maps of the datapath that a Destroyer reads.
type tables struct {
	Origins  *ebpf.Map `ebpf:"origins"`
	Backends *ebpf.Map `ebpf:"backends"`
}

// Origin of this package's program, as package bpf has them.
type (
	originKey struct {
		Cookie uint64
		Addr   [16]byte
		Port   [2]byte
		_      [6]byte
	}
	origin struct {
		Addr    [16]byte
		Port    [2]byte
		_       [2]byte
		Backend uint32
	}
	backend struct{ _ [24]byte }
)

func newTables(t testing.TB) *tables {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := loadDestroy()
	if err != nil {
		t.Fatal(err)
	}
	maps := &tables{}
	if err := spec.LoadAndAssign(maps, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { maps.Origins.Close(); maps.Backends.Close() })
	return maps
}

// sent says of a socket that it was sent to a backend.
func (m *tables) sent(t testing.TB, c *net.UDPConn, to netip.AddrPort, backend uint32) {
	t.Helper()
	cookie, err := cookieOf(c)
	if err != nil {
		t.Fatal(err)
	}
	port := [2]byte{byte(to.Port() >> 8), byte(to.Port())}
	if err := m.Origins.Put(originKey{Cookie: cookie, Addr: to.Addr().As16(), Port: port},
		origin{Backend: backend}); err != nil {
		t.Fatal(err)
	}
}

// newDestroyer is nil where the kernel can't have one, which it must then say itself.
func newDestroyer(t testing.TB, maps *tables) *Destroyer {
	t.Helper()
	d, err := NewDestroyer(maps.Origins, maps.Backends)
	able := false
	if spec, failed := btf.LoadKernelSpec(); failed == nil {
		var f *btf.Func
		able = spec.TypeByName("bpf_sock_destroy", &f) == nil
	}
	if able != (err == nil) || err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatalf("got %v; the kernel has bpf_sock_destroy: %t", err, able)
	}
	if err == nil {
		t.Cleanup(func() { d.Close() })
	}
	return d
}

// TestDestroyer ends the sockets of one namespace whose backend has no row. On kernels without bpf_sock_destroy, it
// checks that NewDestroyer says so.
func TestDestroyer(t *testing.T) {
	for name, text := range map[string]string{"IPv4": "127.0.0.1:5300", "IPv6": "[::1]:5300",
		"IPv4 by IPv6": "127.0.0.1:5300"} {
		t.Run(name, func(t *testing.T) {
			path, in := namespace(t)
			maps, to := newTables(t), netip.MustParseAddrPort(text)
			d := newDestroyer(t, maps)
			if d == nil {
				return
			}
			if err := maps.Backends.Put(uint32(7), backend{}); err != nil {
				t.Fatal(err)
			}
			var there, gone, unknown, direct, other *net.UDPConn
			dial := func(c **net.UDPConn) func() error {
				return func() (err error) {
					if *c, err = connect(to, name == "IPv4 by IPv6"); err == nil {
						t.Cleanup(func() { (*c).Close() })
					}
					return err
				}
			}
			for _, c := range []**net.UDPConn{&there, &gone, &unknown, &direct} {
				in(dial(c))
			}
			if err := dial(&other)(); err != nil {
				t.Fatal(err)
			}
			maps.sent(t, there, to, 7)
			maps.sent(t, gone, to, 8)
			maps.sent(t, other, to, 8)
			maps.sent(t, unknown, to, 0) // by an agent before numbers were kept
			for i, want := range []int{1, 0} {
				if n, err := d.Destroy(path); err != nil || n != want {
					t.Errorf("walk %d: got %d, %v, want %d", i, n, err, want)
				}
			}
			for what, c := range map[string]*net.UDPConn{"backend is there": there, "backend has gone": gone,
				"backend is not known": unknown, "asked for no Service": direct, "other namespace": other} {
				c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, err := c.Read(make([]byte, 1))
				if want := error(os.ErrDeadlineExceeded); c == gone && !errors.Is(err, syscall.ECONNABORTED) ||
					c != gone && !errors.Is(err, want) {
					t.Errorf("%s: read: %v", what, err)
				}
			}
			if n, err := d.Destroy(""); err != nil || n != 1 {
				t.Errorf("own namespace: got %d, %v, want one socket", n, err)
			}
		})
	}
}

func TestDestroyerNowhere(t *testing.T) {
	namespace(t)
	d := newDestroyer(t, newTables(t))
	if d == nil {
		return
	}
	if _, err := d.Destroy(t.TempDir() + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that nothing is there", err)
	}
	if _, err := d.Destroy(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that it is no namespace", err)
	}
}

// BenchmarkLook is one scan of 1,000 connected sockets of a namespace whose backends all exist.
func BenchmarkLook(b *testing.B) {
	path, in := namespace(b)
	maps, to := newTables(b), netip.MustParseAddrPort("127.0.0.1:5300")
	if err := maps.Backends.Put(uint32(7), backend{}); err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		in(func() error {
			c, err := connect(to, false)
			if err == nil {
				b.Cleanup(func() { c.Close() })
				maps.sent(b, c, to, 7)
			}
			return err
		})
	}
	b.Run("bpf_sock_destroy", func(b *testing.B) {
		d := newDestroyer(b, maps)
		for b.Loop() && d != nil {
			if n, err := d.Destroy(path); n != 0 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("netlink", func(b *testing.B) {
		for b.Loop() {
			if err := lookByNetlink(path, maps); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// lookByNetlink finds no socket to end, as package service does where there is no Destroyer.
func lookByNetlink(path string, maps *tables) error {
	n, err := Open(path)
	if err != nil {
		return err
	}
	defer n.Close()
	list, err := n.Connected()
	for _, s := range list {
		var asked origin
		var row backend
		peer := s.Peer()
		key := originKey{Cookie: s.Cookie(), Addr: peer.Addr().As16(), Port: s.id.DestinationPort}
		err = errors.Join(err, maps.Origins.Lookup(key, &asked), maps.Backends.Lookup(asked.Backend, &row))
	}
	return err
}

// connect makes a socket, of IPv6 also for IPv4 where that is asked for.
func connect(to netip.AddrPort, by6 bool) (*net.UDPConn, error) {
	if by6 {
		return mapped(to)
	}
	return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
}
