package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sctpMessage is how long a question and its answer are: most of a packet.
const sctpMessage = 1000

// needSCTP skips the test where the kernel has no SCTP.
func needSCTP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no SCTP, built in or as a module; Debian's, in the VM, have it")
	}
	check(t, err)
	check(t, unix.Close(fd))
}

// sctpSocket opens a socket of SCTP in e, one-to-one style (RFC 6458, section 4). One of IPv6 is of both families.
func (e end) sctpSocket(family int) (f *os.File, err error) {
	domain := map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[family]
	err = e.Do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		if err == nil {
			f = os.NewFile(uintptr(fd), "SCTP")
		}
		return err
	})
	return f, err
}

// sctpServer tells each client the server's name, and the client's address.
type sctpServer struct {
	name   string
	port   uint16
	socket *os.File
	ctx    context.Context
	cancel func()
	work   sync.WaitGroup
}

// serveSCTP begins a server at an address of e, port 0 for any. At :: it is at all addresses of both families, and
// names them to its clients, as upstream's server does.
func (e end) serveSCTP(a netip.AddrPort) (*sctpServer, error) {
	socket, err := e.sctpSocket(family(a.Addr()))
	if err != nil {
		return nil, err
	}
	s := &sctpServer{name: e.Name(), socket: socket}
	if s.port, err = listenSCTP(socket, a); err != nil {
		return nil, errors.Join(fmt.Errorf("serve SCTP at %s: %w", a, err), socket.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.work.Go(s.accept)
	return s, nil
}

func listenSCTP(socket *os.File, a netip.AddrPort) (port uint16, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), sockaddr(a)); err != nil {
			return
		}
		if err = unix.Listen(int(fd), 64); err != nil {
			return
		}
		var bound unix.Sockaddr
		if bound, err = unix.Getsockname(int(fd)); err == nil {
			port = fromSockaddr(bound).Port()
		}
	})
	return port, errors.Join(failed, err)
}

// stop ends the server and what it has with clients.
func (s *sctpServer) stop() {
	s.cancel()
	_ = s.socket.Close()
	s.work.Wait()
}

// accept answers clients until the socket is closed. One that has gone before it was accepted is an error of its own.
func (s *sctpServer) accept() {
	raw, err := s.socket.SyscallConn()
	for err == nil {
		var fd int
		var peer unix.Sockaddr
		var refused error
		err = raw.Read(func(l uintptr) bool {
			fd, peer, refused = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(refused, unix.EAGAIN)
		})
		if err == nil && refused == nil {
			s.work.Go(func() { s.answer(os.NewFile(uintptr(fd), "SCTP"), fromSockaddr(peer).Addr().Unmap()) })
		}
	}
}

// answer answers a client until that goes.
func (s *sctpServer) answer(c *os.File, client netip.Addr) {
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	answer := make([]byte, sctpMessage)
	copy(answer, s.name+" "+client.String())
	for {
		if _, err := io.ReadFull(c, make([]byte, sctpMessage)); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// dialSCTP opens an association from an address of e; from may be zero: then from all of e's, which the other end is
// told.
func (e end) dialSCTP(ctx context.Context, from netip.Addr, to netip.AddrPort) (*os.File, error) {
	c, err := e.sctpSocket(family(to.Addr()))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := associate(c, from, to); err != nil {
		return nil, errors.Join(fmt.Errorf("associate with %s: %w", to, err), c.Close())
	}
	return c, nil
}

func associate(c *os.File, from netip.Addr, to netip.AddrPort) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		if from.IsValid() {
			err = unix.Bind(int(fd), sockaddr(at(from, 0)))
		}
		if err == nil {
			err = unix.Connect(int(fd), sockaddr(to))
		}
	})
	if failed != nil || !errors.Is(err, unix.EINPROGRESS) {
		return errors.Join(failed, err)
	}
	failed = raw.Write(func(fd uintptr) bool {
		var code int
		if code, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return !errors.Is(err, unix.ENOTCONN)
	})
	return errors.Join(failed, err)
}

// askSCTP asks over an association for the server's name and the client's address.
func askSCTP(c *os.File) (server string, seen netip.Addr, err error) {
	if err := c.SetDeadline(soon()); err != nil {
		return "", seen, err
	}
	if _, err := c.Write(make([]byte, sctpMessage)); err != nil {
		return "", seen, fmt.Errorf("send: %w", err)
	}
	answer := make([]byte, sctpMessage)
	if n, err := io.ReadFull(c, answer); err != nil {
		return "", seen, fmt.Errorf("receive after %d bytes: %w", n, err)
	}
	server, text, _ := strings.Cut(string(bytes.TrimRight(answer, "\x00")), " ")
	seen, err = netip.ParseAddr(text)
	return server, seen, err
}

// sctp asks from e once, over an association of its own, within 5 s; from as for dialSCTP.
func (e end) sctp(ctx context.Context, from netip.Addr, to netip.AddrPort) (server string, seen netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience(5*time.Second))
	defer cancel()
	c, err := e.dialSCTP(ctx, from, to)
	if err != nil {
		return "", seen, err
	}
	defer c.Close()
	return askSCTP(c)
}

// sctp has from ask a server at an address of to, and returns the client's address there.
func sctp(ctx context.Context, from, to end, dst netip.Addr) (seen netip.Addr, err error) {
	s, err := to.serveSCTP(at(dst, 0))
	if err != nil {
		return seen, err
	}
	defer s.stop()
	_, seen, err = from.sctp(ctx, netip.Addr{}, at(dst, s.port))
	return seen, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return at(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return at(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
