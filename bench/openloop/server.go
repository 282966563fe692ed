package openloop

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Server accepts connections, and closes each when its client has, or before.
type Server struct {
	listener, epoll, stop int
	addr                  netip.AddrPort
	accepted              atomic.Int64
	closesFirst           bool
	ended                 chan error
}

// backlog is more than any kernel allows: it takes as many as net.core.somaxconn says.
const backlog = 65535

// Listen begins to accept connections at an address of a place; port 0 is any that is free. A server that closes first
// does so as soon as it has accepted a connection.
func Listen(p Place, at netip.AddrPort, closesFirst bool) (*Server, error) {
	s := &Server{listener: -1, epoll: -1, stop: -1, ended: make(chan error, 1), closesFirst: closesFirst}
	err := p.Do(func() (err error) {
		s.listener, err = unix.Socket(domain(at), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
			unix.IPPROTO_TCP)
		return err
	})
	if err == nil {
		err = s.begin(at)
	}
	if err != nil {
		s.closeAll()
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	go func() { s.ended <- s.loop() }()
	return s, nil
}

func (s *Server) begin(at netip.AddrPort) (err error) {
	if err := unix.SetsockoptInt(s.listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(s.listener, sockaddr(at)); err != nil {
		return err
	}
	if err := unix.Listen(s.listener, backlog); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.listener)
	if err != nil {
		return err
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		s.addr = netip.AddrPortFrom(netip.AddrFrom4(name.Addr), uint16(name.Port))
	case *unix.SockaddrInet6:
		s.addr = netip.AddrPortFrom(netip.AddrFrom16(name.Addr), uint16(name.Port))
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return err
	}
	return errors.Join(s.watch(s.listener), s.watch(s.stop))
}

// Accepted is how many connections it has accepted.
func (s *Server) Accepted() int { return int(s.accepted.Load()) }

// Close ends it, and returns what it could not do.
func (s *Server) Close() error {
	if _, err := unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("stop server: %w", err)
	}
	err := <-s.ended
	s.closeAll()
	return err
}

func (s *Server) closeAll() {
	for _, fd := range []int{s.listener, s.epoll, s.stop} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (s *Server) watch(fd int) error {
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (s *Server) loop() error {
	open := map[int]bool{}
	defer func() {
		for fd := range open {
			unix.Close(fd)
		}
	}()
	var events [256]unix.EpollEvent
	for {
		n, err := unix.EpollWait(s.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for connections: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			switch fd := int(event.Fd); {
			case fd == s.stop:
				return nil
			case fd == s.listener:
				err = s.accept(open)
			default:
				err = s.read(fd, open)
			}
			if err != nil {
				return err
			}
		}
	}
}

// accept takes all connections that wait.
func (s *Server) accept(open map[int]bool) error {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EMFILE): // clients in this process have them all, and will give up
			time.Sleep(time.Millisecond)
			return nil
		case err != nil:
			return fmt.Errorf("accept connection: %w", err)
		}
		s.accepted.Add(1)
		if s.closesFirst {
			if err := unix.Close(fd); err != nil {
				return fmt.Errorf("close connection: %w", err)
			}
			continue
		}
		open[fd] = false // not watched
		if err := s.read(fd, open); err != nil {
			return err
		}
	}
}

// read closes a connection that its client has closed, and watches it otherwise.
func (s *Server) read(fd int, open map[int]bool) error {
	var buf [512]byte
	n, err := unix.Read(fd, buf[:])
	if n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		if open[fd] {
			return nil
		}
		open[fd] = true
		return s.watch(fd)
	}
	delete(open, fd)
	return unix.Close(fd) // the client's end, or a reset
}
