package sockdiag

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace makes a network namespace with loopback and returns a path to it and how to run something there.
func namespace(t testing.TB) (string, func(func() error)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	was, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close(); was.Close() })
	in := func(do func() error) {
		t.Helper()
		err := netns.Set(ns)
		if err == nil {
			err = errors.Join(do(), netns.Set(was))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return fmt.Sprintf("/proc/self/fd/%d", int(ns)), in
}

// mapped connects a socket of IPv6 to an IPv4 address.
func mapped(to netip.AddrPort) (*net.UDPConn, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "mapped")
	defer file.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}); err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(file)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// TestDestroy ends one of two sockets to each of several peers.
func TestDestroy(t *testing.T) {
	for name, to := range map[string]string{"IPv4": "127.0.0.1:5300", "IPv6": "[::1]:5300",
		"IPv4 by IPv6": "127.0.0.1:5300"} {
		t.Run(name, func(t *testing.T) {
			path, in := namespace(t)
			peer := netip.MustParseAddrPort(to)
			var pair [2]*net.UDPConn
			in(func() error {
				server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(peer))
				if err != nil {
					return err
				}
				t.Cleanup(func() { server.Close() })
				for i := range pair {
					if pair[i], err = connect(peer, name == "IPv4 by IPv6"); err != nil {
						return err
					}
					t.Cleanup(func() { pair[i].Close() })
				}
				return nil
			})
			n, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			list, err := n.Connected()
			if err != nil || len(list) != 2 || list[0].Peer() != peer || list[1].Peer() != peer ||
				list[0].Cookie() == list[1].Cookie() {
				t.Fatalf("got %v, %v, want two sockets to %s", list, err, peer)
			}
			if err := n.Destroy(list[0]); err != nil {
				t.Fatal(err)
			}
			if err := n.Destroy(list[0]); !errors.Is(err, unix.ENOENT) {
				t.Errorf("a second time: %v, want ENOENT", err)
			}
			aborted := 0
			for _, c := range pair {
				c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, err := c.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNABORTED) {
					aborted++
				} else if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
			}
			if aborted != 1 {
				t.Errorf("%d of two sockets were aborted, want one", aborted)
			}
			if left, err := n.Connected(); err != nil || len(left) != 1 || left[0] != list[1] {
				t.Errorf("got %v, %v, want %v", left, err, list[1:])
			}
		})
	}
}

func TestProbe(t *testing.T) {
	_, in := namespace(t)
	var err error
	in(func() error { err = Probe(); return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestOpenNothing(t *testing.T) {
	if _, err := Open(t.TempDir() + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that nothing is there", err)
	}
}
