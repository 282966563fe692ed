package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// way is who talks to whom, and as whom.
type way struct {
	from, to string
	as       string // whose address the other end sees
}

// ways are all that the datapath has to know. A node may use its gateway's address for itself where it talks to pods.
func ways() []way {
	return []way{
		{"a1", "b1", "a1"}, {"b1", "a1", "b1"},
		{"a1", "a2", "a1"}, {"a2", "a1", "a2"},
		{"a1", "node1", "a1"}, {"a1", "node2", "a1"},
		{"node1", "a1", "node1"}, {"node1", "a2", "node1"}, {"node2", "a1", "node2"},
		{"a1", "world", "node1"}, {"a2", "world", "node2"},
		{"node1", "world", "node1"},
	}
}

// TestConnectivity sends TCP, UDP, ICMP and, where the kernel has it, SCTP each way, and looks at the source address
// that arrives.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1  b1      │  │ a2  b2      │
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧════ world ═════╧═══════
func TestConnectivity(t *testing.T) {
	for _, m := range modes() {
		for _, s := range stacks() {
			if slow() > 1 && s.name != "dual" && m.name != "native" && m.name != "vxlan6" {
				continue // a program for each family alone is loaded in two modes there; the others are tried where it is quick
			}
			t.Run(m.name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				c := up(t, setup{mode: m, stack: s})
				for _, f := range s.families {
					for _, w := range ways() {
						c.try(w, f)
					}
				}
			})
		}
	}
}

// try sends everything one way.
func (c *cluster) try(w way, family int) {
	c.t.Helper()
	from, to := c.end(w.from), c.end(w.to)
	dst := to.addr(family)
	for _, p := range []struct {
		name string
		send func(context.Context) (netip.Addr, error)
	}{
		{"ICMP", func(ctx context.Context) (netip.Addr, error) { return ping(ctx, from, to, dst, 56) }},
		{"UDP", func(ctx context.Context) (netip.Addr, error) { return udp(ctx, from, to, dst, 1000) }},
		{"TCP", func(ctx context.Context) (netip.Addr, error) { return tcp(ctx, from, to, dst, fewer(4<<20)) }},
		{"SCTP", func(ctx context.Context) (netip.Addr, error) { return sctp(from, to, dst) }},
	} {
		seen, err := p.send(c.t.Context())
		what := fmt.Sprintf("IPv%d %s %s→%s", family, p.name, w.from, w.to)
		if errors.Is(err, unix.EPROTONOSUPPORT) && p.name == "SCTP" {
			c.t.Logf("%s: not tried, this kernel has none; Debian's, in the VM, have it", what)
			continue
		}
		if err != nil {
			c.t.Errorf("%s: %v", what, err)
			continue
		}
		if want := c.addressesOf(w, family); !slices.Contains(want, seen) {
			c.t.Errorf("%s arrives from %s, want %s", what, seen, want)
		}
	}
}

// addressesOf are those that the sender may be seen by: the world sees one of a node's only.
func (c *cluster) addressesOf(w way, family int) []netip.Addr {
	list := []netip.Addr{c.end(w.as).addr(family)}
	var node int
	if n, _ := fmt.Sscanf(w.as, "node%d", &node); n == 1 && w.to != "world" {
		list = append(list, gateway(node, family))
	}
	return list
}

// sctp opens an association, sends a message each way, and returns who the server saw.
func sctp(from, to end, dst netip.Addr) (seen netip.Addr, err error) {
	return sctpVia(from, to, at(dst, 0), netip.AddrPort{})
}

// sctpVia is sctp where the client asks for another address than the server's own, if via is valid.
func sctpVia(from, to end, dst, via netip.AddrPort) (seen netip.Addr, err error) {
	server, err := sctpSocket(to, dst.Addr())
	if err != nil {
		return seen, err
	}
	defer unix.Close(server)
	if err := unix.Bind(server, sockaddr(dst)); err != nil {
		return seen, fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(server, 1); err != nil {
		return seen, fmt.Errorf("listen: %w", err)
	}
	bound, err := unix.Getsockname(server)
	if err != nil {
		return seen, err
	}
	if via.IsValid() {
		bound = sockaddr(via)
	}
	client, err := sctpSocket(from, dst.Addr())
	if err != nil {
		return seen, err
	}
	defer unix.Close(client)
	if err := associate(client, bound); err != nil {
		return seen, fmt.Errorf("connect: %w", err)
	}
	var accepted int
	var peer unix.Sockaddr
	err = uninterrupted(func() (err error) { accepted, peer, err = unix.Accept(server); return err })
	if err != nil {
		return seen, fmt.Errorf("accept: %w", err)
	}
	defer unix.Close(accepted)
	for _, pair := range [][2]int{{client, accepted}, {accepted, client}} {
		buf := make([]byte, 4096)
		if _, err := unix.Write(pair[0], buf[:3000]); err != nil {
			return seen, fmt.Errorf("send: %w", err)
		}
		for got := 0; got < 3000; {
			var n int
			err := uninterrupted(func() (err error) { n, err = unix.Read(pair[1], buf); return err })
			if err != nil || n == 0 {
				return seen, fmt.Errorf("receive after %d bytes: %w", got, errOr(err, "the end"))
			}
			got += n
		}
	}
	return fromSockaddr(peer), nil
}

// uninterrupted repeats a call that a signal of Go's scheduler interrupts: SO_RCVTIMEO makes the kernel not restart it.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// associate connects, and goes on where a signal interrupted it: the kernel does so too, and a second call would be refused.
func associate(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	if !errors.Is(err, unix.EINTR) {
		return err
	}
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	err = uninterrupted(func() error {
		n, err := unix.Poll(wait, int(patience(5*time.Second).Milliseconds()))
		if err == nil && n == 0 {
			return unix.ETIMEDOUT
		}
		return err
	})
	if err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

func sctpSocket(e end, a netip.Addr) (fd int, err error) {
	domain := unix.AF_INET
	if a.Is6() {
		domain = unix.AF_INET6
	}
	err = e.Do(func() error {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(patience(5e9).Nanoseconds())
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func fromSockaddr(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr)
	}
	return netip.Addr{}
}
