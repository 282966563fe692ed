package labtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// option sets a socket option before the socket is bound.
type option func(fd int) error

func intOption(level, name, value int) option {
	return func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) }
}

// perFamily is an option that each family has under its own name.
func perFamily(family, name4, name6, value int) option {
	if family == 4 {
		return intOption(unix.IPPROTO_IP, name4, value)
	}
	return intOption(unix.IPPROTO_IPV6, name6, value)
}

// fragmented lets the kernel cut what is larger than the path's MTU; whole forbids it to.
func fragmented(family int) option {
	return perFamily(family, unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
}

func whole(family int) option {
	return perFamily(family, unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
}

func hops(family, n int) option {
	return perFamily(family, unix.IP_TTL, unix.IPV6_UNICAST_HOPS, n)
}

// errorQueue keeps ICMP errors for readError.
func errorQueue(family int) option {
	return perFamily(family, unix.IP_RECVERR, unix.IPV6_RECVERR, 1)
}

// deep makes room for what arrives while the reader does not run.
func deep() option { return intOption(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) }

func control(options []option) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		failed := raw.Control(func(fd uintptr) {
			for _, set := range options {
				err = errors.Join(err, set(int(fd)))
			}
		})
		return errors.Join(failed, err)
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// awaitExec returns when no process that is being started still has copies of sockets that were closed before: between
// fork and exec a child has all descriptors of its parent, and on a busy machine a port that a test has just given back
// is in use for that long.
func awaitExec() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}

// listenTCP listens at an address of e, port 0 for any.
func (e end) listenTCP(ctx context.Context, at netip.AddrPort, options ...option) (l *net.TCPListener, err error) {
	awaitExec()
	err = e.Do(func() error {
		config := net.ListenConfig{Control: control(options)}
		config.SetMultipathTCP(false)
		any, err := config.Listen(ctx, fmt.Sprintf("tcp%d", family(at.Addr())), at.String())
		if err == nil {
			l = any.(*net.TCPListener)
		}
		return err
	})
	return l, err
}

// dialTCP connects from e; from may be zero.
func (e end) dialTCP(ctx context.Context, from, to netip.AddrPort, options ...option) (c *net.TCPConn, err error) {
	err = e.Do(func() error {
		d := net.Dialer{Control: control(options), KeepAlive: -1, Timeout: patience(5 * time.Second)}
		d.SetMultipathTCP(false)
		if from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		any, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			c = any.(*net.TCPConn)
		}
		return err
	})
	return c, err
}

// listenUDP opens a socket that is bound and not connected.
func (e end) listenUDP(ctx context.Context, at netip.AddrPort, options ...option) (c *net.UDPConn, err error) {
	awaitExec()
	err = e.Do(func() error {
		config := net.ListenConfig{Control: control(options)}
		any, err := config.ListenPacket(ctx, fmt.Sprintf("udp%d", family(at.Addr())), at.String())
		if err == nil {
			c = any.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

// dialUDP opens a connected socket: one that hears of ICMP errors.
func (e end) dialUDP(ctx context.Context, from, to netip.AddrPort, options ...option) (c *net.UDPConn, err error) {
	err = e.Do(func() error {
		d := net.Dialer{Control: control(options)}
		if from.IsValid() {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		}
		any, err := d.DialContext(ctx, "udp", to.String())
		if err == nil {
			c = any.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

// listenICMP opens a raw socket that gets every ICMP message of the family that e's stack receives.
func (e end) listenICMP(ctx context.Context, family int) (c *net.IPConn, err error) {
	if family == 6 {
		return e.listenIP(ctx, "ip6:ipv6-icmp", netip.IPv6Unspecified())
	}
	return e.listenIP(ctx, "ip4:icmp", netip.IPv4Unspecified())
}

// listenIP opens a raw socket at an address, which it sends from, or at any.
func (e end) listenIP(ctx context.Context, network string, at netip.Addr) (c *net.IPConn, err error) {
	err = e.Do(func() error {
		any, err := (&net.ListenConfig{Control: control([]option{deep()})}).ListenPacket(ctx, network, at.String())
		if err == nil {
			c = any.(*net.IPConn)
		}
		return err
	})
	return c, err
}

// sockopt reads an integer option.
func sockopt(c syscall.Conn, level, name int) (value int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) })
	return value, errors.Join(failed, err)
}

// pathMTU is what the kernel believes of a connected socket's path, in bytes of layer 3.
func pathMTU(c syscall.Conn, family int) (int, error) {
	if family == 4 {
		return sockopt(c, unix.IPPROTO_IP, unix.IP_MTU)
	}
	return sockopt(c, unix.IPPROTO_IPV6, unix.IPV6_MTU)
}

// icmpError is an entry of a socket's error queue: its sender and content.
type icmpError struct {
	kind, code int
	mtu        int
	from       netip.Addr
}

// readError takes the next entry from the error queue of a socket with errorQueue, and waits for it.
func readError(c syscall.Conn, within time.Duration) (e icmpError, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return e, err
	}
	data, oob := make([]byte, 2048), make([]byte, 512)
	for end := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		var n int
		failed := raw.Control(func(fd uintptr) {
			_, n, _, _, err = unix.Recvmsg(int(fd), data, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		})
		if failed != nil {
			return e, failed
		}
		if err == nil {
			return parseError(oob[:n])
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			return e, fmt.Errorf("read error queue: %w", err)
		}
	}
}

// parseError reads struct sock_extended_err and the address behind it (linux/errqueue.h).
func parseError(oob []byte) (e icmpError, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return e, err
	}
	for _, m := range messages {
		is4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		is6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !is4 && !is6 || len(m.Data) < 24 {
			continue
		}
		e.kind, e.code = int(m.Data[5]), int(m.Data[6])
		e.mtu = int(native32(m.Data[8:]))
		if is4 {
			e.from = netip.AddrFrom4([4]byte(m.Data[20:24]))
		} else if len(m.Data) >= 40 {
			e.from = netip.AddrFrom16([16]byte(m.Data[24:40]))
		}
		return e, nil
	}
	return e, errors.New("an error without its origin")
}

// synRetransmissions is the kernel's counter of a network namespace: SYNs that were sent again since the first one had
// no answer.
func synRetransmissions(p interface{ Do(func() error) error }) (n int, err error) {
	err = p.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		lines := strings.Split(string(text), "\n")
		if err != nil || len(lines) < 2 {
			return errOr(err, "no counters")
		}
		k := slices.Index(strings.Fields(lines[0]), "TCPSynRetrans")
		if k < 0 {
			return errors.New("no counter TCPSynRetrans")
		}
		n, err = strconv.Atoi(strings.Fields(lines[1])[k])
		return err
	})
	return n, err
}
