package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// transparent lets a socket have addresses that are not this network namespace's, and connect from a port that another
// connection to another server has.
func transparent(network, _ string, raw syscall.RawConn) error {
	var err error
	bad := raw.Control(func(fd uintptr) {
		set := func(level, option int) {
			if err == nil {
				err = unix.SetsockoptInt(int(fd), level, option, 1)
			}
		}
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR)
		set(unix.SOL_IP, unix.IP_TRANSPARENT)
		if network == "tcp6" {
			set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT)
		}
	})
	if bad != nil {
		return bad
	}
	if err != nil {
		return fmt.Errorf("make the socket transparent: %w", err)
	}
	return nil
}

// listen opens the socket that takes connections to all addresses and ports, which the datapath selects.
func listen(ctx context.Context) (*net.TCPListener, error) {
	c := net.ListenConfig{Control: transparent, KeepAlive: -1}
	c.SetMultipathTCP(false) // maps of sockets do not take MPTCP
	l, err := c.Listen(ctx, "tcp", "[::]:0")
	if err != nil {
		l, err = c.Listen(ctx, "tcp4", "0.0.0.0:0") // a kernel without IPv6
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l.(*net.TCPListener), nil
}

// dial connects to a server from the client's address and port.
func dial(ctx context.Context, client, server netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(client), Control: transparent, Timeout: dialTimeout,
		KeepAlive: -1}
	return d.DialContext(ctx, "tcp", server.String())
}

// descriptors are enough for the connections that are served by default, two sockets each, with room for more.
const descriptors = 1 << 17

// raiseDescriptors raises the limit of descriptors where it is lower: the default of a service manager or a container
// engine is often too low.
func raiseDescriptors() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	if limit.Cur >= descriptors {
		return nil
	}
	raised := unix.Rlimit{Cur: descriptors, Max: max(limit.Max, descriptors)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("raise the limit of file descriptors from %d to %d: %w", limit.Cur, raised.Cur, err)
	}
	return nil
}

// ends are the client and the server of a redirected connection.
func ends(conn net.Conn) (client, server netip.AddrPort) {
	return plain(conn.RemoteAddr()), plain(conn.LocalAddr())
}

func plain(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
