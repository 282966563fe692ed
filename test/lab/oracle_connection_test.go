package labtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/test/lab/oracle"
)

// connect opens a connection, and has both ends hear of each other.
func (z *fuzz) connect(t *testing.T, l *lasting) error {
	t.Helper()
	from, to := z.endOf(l.place[0]), z.endOf(l.place[1])
	ctx, cancel := context.WithTimeout(t.Context(), patience(2500*time.Millisecond)) // a SYN, and another
	defer cancel()
	if l.Proto == oracle.UDP {
		server, err := to.listenUDP(ctx, at(l.Dst, l.DPort))
		if errors.Is(err, syscall.EADDRINUSE) {
			l.gone = true // another slot's connection has the port
			return nil
		}
		check(t, err)
		l.conn[1] = server
		client, err := from.dialUDP(ctx, at(l.Src, 0), l.front)
		check(t, err)
		l.conn[0] = client
		l.SPort = portOf(client.LocalAddr())
		z.model.Goes(l.Connection)
		return l.greet()
	}
	service := l.front != at(l.Dst, l.DPort)
	if !service {
		listener, err := to.listenTCP(ctx, l.front)
		if errors.Is(err, syscall.EADDRINUSE) {
			l.gone = true
			return nil
		}
		check(t, err)
		l.listener = listener
	}
	z.model.Goes(l.Connection)
	client, err := from.dialTCP(ctx, at(l.Src, 0), l.front)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", l.front, err)
	}
	l.conn[0], l.SPort = client, portOf(client.LocalAddr())
	z.model.Goes(l.Connection)
	return z.accept(l, service)
}

// accept waits for the server's end of a TCP connection.
func (z *fuzz) accept(l *lasting, service bool) error {
	end := time.Now().Add(patience(time.Second))
	for service && l.conn[1] == nil && time.Now().Before(end) {
		z.wrong = append(z.wrong, z.checked(time.Millisecond)...) // the backend's post hands it over
	}
	if listener, ok := l.listener.(*net.TCPListener); ok {
		if err := listener.SetDeadline(end); err != nil {
			return err
		}
		server, err := listener.AcceptTCP()
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
		l.conn[1] = server
	}
	if l.conn[1] == nil {
		return fmt.Errorf("accept a connection to %s: %w", l.front, os.ErrDeadlineExceeded)
	}
	return l.greet()
}

// adopt takes the server's end from a post that has accepted it; false, if the connection has one.
func (l *lasting) adopt(fd int) bool {
	if l.conn[1] != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "accepted")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err == nil {
		l.conn[1] = conn
	}
	return true // the descriptor is closed in any case
}

// greet has the client send until the server has received something, and the other way around.
func (l *lasting) greet() error {
	for _, side := range []int{0, 1} {
		var err error
		for range 5 {
			if err = l.say(side, 1); err != nil && l.Proto == oracle.TCP {
				break
			}
			if err = l.await(1-side, patience(500*time.Millisecond)); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("%s receives nothing from %s: %w", l.place[1-side].Name, l.place[side].Name, err)
		}
	}
	return nil
}

// await waits until a side receives something.
func (l *lasting) await(side int, within time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		switch {
		case l.hear(side) > 0:
			return nil
		case l.gone:
			return errors.New("the connection was reset")
		case time.Now().After(end):
			return os.ErrDeadlineExceeded
		}
	}
}

// send has both sides send. UDP may lose some.
func (l *lasting) send() {
	times := map[uint8]int{oracle.TCP: 1, oracle.UDP: 3}[l.Proto]
	for side := range 2 {
		if err := l.say(side, times); err != nil && l.Proto == oracle.TCP {
			l.gone = true
		}
	}
}

// say has a side send. An error of UDP is about what was sent before.
func (l *lasting) say(side, times int) (err error) {
	for range times {
		switch conn := l.conn[side].(type) {
		case nil:
		case *net.UDPConn:
			if side == 0 {
				_, err = conn.Write([]byte(lastingText))
			} else if l.peer.IsValid() {
				_, err = conn.WriteToUDPAddrPort([]byte(lastingText), l.peer)
			}
		default:
			_, err = conn.Write([]byte(lastingText))
		}
	}
	return err
}

// hear reads all that a side has received, and returns how often it was something of the connection.
func (l *lasting) hear(side int) (n int) {
	if l == nil || l.conn[side] == nil {
		return 0
	}
	raw, err := l.conn[side].(syscall.Conn).SyscallConn()
	if err != nil {
		return 0
	}
	buf := make([]byte, 2048)
	for range 1000 {
		var k int
		var from unix.Sockaddr
		_ = raw.Read(func(fd uintptr) bool {
			k, from, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return true
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			return n
		case l.Proto == oracle.TCP && (err != nil || k == 0):
			l.gone = true
			return n
		case err == nil && strings.HasPrefix(string(buf[:k]), lastingText):
			n++
			if side == 1 && l.Proto == oracle.UDP {
				l.peer = sockaddrPort(from)
			}
		}
	}
	return n
}

// sockaddrPort is a socket's address; the zero value, if it is of no IP socket.
func sockaddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// close resets both ends.
func (l *lasting) close() {
	if l == nil {
		return
	}
	for _, conn := range l.conn {
		if c, ok := conn.(*net.TCPConn); ok {
			_ = c.SetLinger(0) // a connection that is gone cannot have it
		}
		if conn != nil {
			conn.Close()
		}
	}
	if l.listener != nil {
		l.listener.Close()
	}
	l.gone = true
}
