package labtest

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// witness hears all that reaches a place: every frame of a pod's eth0, all that its stack takes for a transport
// protocol, and datagrams of one port.
type witness struct {
	name string
	// frames is an AF_PACKET socket on eth0; -1 in a node, where such a socket hears frames before any program does.
	frames int
	raw    []rawEar
	udp    *net.UDPConn
	tcp    *net.TCPListener
	close  []func() error
}

// rawEar is a raw socket of one protocol.
type rawEar struct {
	name string
	conn *net.IPConn
}

// witness opens sockets in a place; a TCP listener and a UDP socket are on the port.
func (a *arena) witness(t *testing.T, place string, f int, port uint16) *witness {
	t.Helper()
	e := a.end(place)
	w := &witness{name: place, frames: -1}
	if !strings.HasPrefix(place, "node") {
		fd, err := a.rawSocket(place, "eth0", unix.ETH_P_ALL)
		check(t, err)
		check(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
		w.close = append(w.close, func() error { return unix.Close(fd) })
		w.frames = fd
	}
	unspecified := map[int]netip.Addr{4: netip.IPv4Unspecified(), 6: netip.IPv6Unspecified()}[f]
	for name, proto := range map[string]uint8{
		"TCP": protoTCP, "UDP": protoUDP, "ICMP": map[int]uint8{4: protoICMP, 6: protoICMP6}[f],
	} {
		c, err := e.listenIP(t.Context(), rawNetwork(unspecified, proto), unspecified)
		check(t, err)
		w.close = append(w.close, c.Close)
		w.raw = append(w.raw, rawEar{name, c})
	}
	var err error
	w.udp, err = e.listenUDP(t.Context(), at(unspecified, port))
	check(t, err)
	w.tcp, err = e.listenTCP(t.Context(), at(unspecified, port))
	check(t, err)
	w.close = append(w.close, w.udp.Close, w.tcp.Close)
	return w
}

// leave closes the witness's sockets.
func (w *witness) leave() {
	for _, each := range w.close {
		_ = each() // nothing was written
	}
}

// heard waits a moment and lists where bytes with the tag arrived, and nothing if they did nowhere.
func (w *witness) heard(tag []byte) (where []string) {
	time.Sleep(patience(60 * time.Millisecond))
	if n := countFrames(w.frames, tag); n > 0 {
		where = append(where, fmt.Sprintf("%d frames on eth0", n))
	}
	buf := make([]byte, 65536)
	for _, r := range w.raw {
		if n := countReads(r.conn, tag, buf); n > 0 {
			where = append(where, fmt.Sprintf("%d at a raw %s socket", n, r.name))
		}
	}
	if n := countReads(w.udp, tag, buf); n > 0 {
		where = append(where, fmt.Sprintf("%d at a UDP socket", n))
	}
	return where
}

// countFrames counts frames with the tag that came in to a packet socket.
func countFrames(fd int, tag []byte) (n int) {
	for fd >= 0 {
		buf := make([]byte, 9000)
		k, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return n
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if bytes.Contains(buf[:k], tag) {
			n++
		}
	}
	return n
}

// countReads counts what is waiting at a socket and has the tag.
func countReads(c net.PacketConn, tag, buf []byte) (n int) {
	if c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
		return n
	}
	for {
		k, _, err := c.ReadFrom(buf)
		if err != nil {
			return n
		}
		if bytes.Contains(buf[:k], tag) {
			n++
		}
	}
}
