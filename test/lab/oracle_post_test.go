package labtest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/test/lab/oracle"
)

// post has all that a place can receive with: raw sockets, UDP sockets, TCP listeners, and in pods and the world a
// packet socket.
type post struct {
	place *oracle.Place
	ears  []postEar
	buf   []byte
}

// postEar is one socket, and how to make of what it reads what was seen.
type postEar struct {
	name   string
	fd     int
	listen bool
	read   func(b []byte, from unix.Sockaddr) (oracle.Seen, bool)
}

// sighting is what a socket received.
type sighting struct {
	at   *oracle.Place
	by   string
	seen oracle.Seen
	why  string          // what is wrong with it
	sent *oracle.Attempt // nil: it was no attempt

	lasting *lasting // the connection that it belongs to; nil: to none
	hangs   bool     // it does not open, or does not go on
	frames  int      // sent until then
}

// postPorts are where UDP sockets and TCP listeners are.
func postPorts() []uint16 { return []uint16{53, 80, 443, 8080, 30000} }

// newPost opens a place's sockets.
func newPost(t *testing.T, e end, place *oracle.Place) *post {
	t.Helper()
	p := &post{place: place, buf: make([]byte, 65536)}
	t.Cleanup(func() {
		for _, ear := range p.ears {
			unix.Close(ear.fd)
		}
	})
	check(t, e.Do(func() error {
		if place.Pod || place.Node == "" {
			if err := p.packets(); err != nil {
				return err
			}
		}
		for _, proto := range []int{oracle.TCP, oracle.UDP, oracle.ICMP, oracle.ICMPv6} {
			if place.Node == "" {
				break // the world has two addresses of a family, and such sockets do not say which one it was
			}
			if err := p.raw(proto); err != nil {
				return fmt.Errorf("open a raw socket: %w", err)
			}
		}
		for _, port := range postPorts() {
			if err := p.listen(port); err != nil {
				return fmt.Errorf("listen at port %d: %w", port, err)
			}
		}
		return nil
	}))
	return p
}

// packets opens a socket that gets every frame that comes in.
func (p *post) packets() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.ETH_P_ALL<<8)
	if err != nil {
		return err
	}
	p.ears = append(p.ears, postEar{"eth0", fd, false, func(b []byte, from unix.Sockaddr) (oracle.Seen, bool) {
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			return oracle.Seen{}, false
		}
		s, ok := oracle.ReadFrame(b)
		return s, ok && (p.place.Pod || p.place.Has(s.Dst))
	}})
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
}

// raw opens raw sockets of a protocol.
func (p *post) raw(proto int) error {
	family, read := unix.AF_INET6, p.readRaw6(uint8(proto))
	for range 2 {
		if !(family == unix.AF_INET && proto == oracle.ICMPv6 || family == unix.AF_INET6 && proto == oracle.ICMP) {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
			if err != nil {
				return err
			}
			p.ears = append(p.ears, postEar{fmt.Sprintf("a raw socket of protocol %d", proto), fd, false, read})
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
				return err
			}
		}
		family, read = unix.AF_INET, p.readRaw4
	}
	return nil
}

// tunnelled is a tunnel's outer packet, which the node's own kernel unpacks.
func (p *post) tunnelled(s oracle.Seen) bool {
	return !p.place.Pod && s.Proto == oracle.UDP && (s.DPort == 8472 || s.DPort == 6081)
}

func (p *post) readRaw4(b []byte, _ unix.Sockaddr) (oracle.Seen, bool) {
	s, ok := oracle.ReadIP(b)
	return s, ok && !p.tunnelled(s)
}

// readRaw6 reads what such a socket gets: the packet from its transport header on.
func (p *post) readRaw6(proto uint8) func([]byte, unix.Sockaddr) (oracle.Seen, bool) {
	return func(b []byte, from unix.Sockaddr) (oracle.Seen, bool) {
		sa, ok := from.(*unix.SockaddrInet6)
		if !ok {
			return oracle.Seen{}, false
		}
		s := oracle.Seen{Flow: oracle.Flow{Src: netip.AddrFrom16(sa.Addr), Dst: p.own(6), Proto: proto}}
		s.ReadTransport(b)
		return s, !p.tunnelled(s)
	}
}

// own is the place's address of a family.
func (p *post) own(f int) netip.Addr {
	for _, a := range p.place.Addrs {
		if a.Is4() == (f == 4) {
			return a
		}
	}
	return netip.Addr{}
}

// listen opens a UDP socket and a TCP listener on a port, for both families.
func (p *post) listen(port uint16) error {
	for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
		fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		}
		if err == nil {
			err = bindSoon(fd, &unix.SockaddrInet6{Port: int(port)})
		}
		if err == nil && kind == unix.SOCK_STREAM {
			err = unix.Listen(fd, 1024)
		}
		if err != nil {
			return err
		}
		proto, name := uint8(oracle.UDP), "a UDP socket"
		if kind == unix.SOCK_STREAM {
			proto, name = oracle.TCP, "a TCP listener"
		}
		read := func(b []byte, from unix.Sockaddr) (oracle.Seen, bool) { return p.readSocket(proto, port, b, from) }
		p.ears = append(p.ears, postEar{name, fd, kind == unix.SOCK_STREAM, read})
	}
	return nil
}

// bindSoon binds a socket once the port is free: that of a server that was killed is so a moment later.
func bindSoon(fd int, to unix.Sockaddr) (err error) {
	for end := time.Now().Add(patience(5 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		err = unix.Bind(fd, to)
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return err
		}
	}
}

func (p *post) readSocket(proto uint8, port uint16, b []byte, from unix.Sockaddr) (oracle.Seen, bool) {
	sa, ok := from.(*unix.SockaddrInet6)
	if !ok {
		return oracle.Seen{}, false
	}
	src := netip.AddrFrom16(sa.Addr).Unmap()
	s := oracle.Seen{Whole: true}
	s.Flow = oracle.Flow{Src: src, Dst: p.own(family(src)), Proto: proto, SPort: uint16(sa.Port), DPort: port}
	s.FindTag(b)
	return s, true
}

// collect hands over all that was received since the last time. Connections that were accepted are handed over with
// their sockets.
func (p *post) collect(each func(by string, s oracle.Seen), accepted func(s oracle.Seen, fd int)) {
	for _, ear := range p.ears {
		for {
			if ear.listen {
				fd, from, err := unix.Accept4(ear.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				if err != nil {
					break
				}
				if s, ok := ear.read(nil, from); ok {
					accepted(s, fd)
				}
				continue
			}
			n, from, err := unix.Recvfrom(ear.fd, p.buf, 0)
			if err != nil {
				break
			}
			if s, ok := ear.read(p.buf[:n], from); ok {
				each(ear.name, s)
			}
		}
	}
}
