package probe

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dial connects to the backend by a flow of its own.
func (t *travel) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	local, err := t.source(ctx, to)
	if err != nil {
		return nil, err
	}
	if local == t.frontend.Address.Addr() {
		return dialDirect(ctx, to) // a backend can't send a packet from its own address to its own address
	}
	f := &Flow{Backend: to, Frontend: t.frontend, Port: t.port}
	d := dialer()
	d.Control = onSocket(func(fd int) error { return t.prepare(fd, f, local) })
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err == nil {
		conn, err = t.connected(f, conn)
	}
	if err != nil {
		_ = t.close(f) // it may not have begun
		return nil, err
	}
	return conn, nil
}

// source is the address from which the kernel reaches a backend. No packet is sent.
func (t *travel) source(ctx context.Context, to netip.AddrPort) (netip.Addr, error) {
	d := net.Dialer{Control: onSocket(t.mark)}
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

func onSocket(do func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = do(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

func (t *travel) mark(fd int) error {
	return os.NewSyscallError("set SO_MARK",
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(t.flows.Mark())))
}

// maxSegment is the largest TCP segment of a check. With outer headers and options it fits into the smallest MTU of
// IPv6, 1,280 bytes.
const maxSegment = 1100

// prepare binds a socket, so that its flow is known before its first packet, and announces the flow. A bound port is no
// other socket's, also not for another backend: replies to both may come from the same frontend. The connection ends
// with a reset, which leaves no TIME-WAIT: its port is free, and no packet follows when the flow is closed.
func (t *travel) prepare(fd int, f *Flow, local netip.Addr) error {
	if err := t.mark(fd); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, maxSegment); err != nil {
		return os.NewSyscallError("set TCP_MAXSEG", err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return os.NewSyscallError("set SO_LINGER", err)
	}
	if err := unix.Bind(fd, sockaddr(local)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	f.Local = netip.AddrPortFrom(local, portOf(name))
	return t.begin(f)
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

func portOf(name unix.Sockaddr) uint16 {
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port)
	case *unix.SockaddrInet6:
		return uint16(a.Port)
	}
	return 0
}
