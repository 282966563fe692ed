package labtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// masqueradeModes are the ways that translate differently: at the pod, at the wire behind the host's stack, and with a
// row for every flow.
func masqueradeModes() []mode {
	return []mode{modeNamed("native"), modeNamed("legacy"), modeNamed("vxlan"), modeNamed("native-flows")}
}

// TestMasquerade has pods that look alike to the world, and looks whether each gets its own answers.
//
//	┌─ node1 ─────────────┐
//	│ a1  b1  c1  d1      │   the same source ports and echo identifiers,
//	└──────┬──────────────┘   all from node1's address
//	═══════╧═ world: one server
func TestMasquerade(t *testing.T) {
	for _, m := range masqueradeModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m, nodes: 1, pods: []string{"a", "b", "c", "d"}})
			for _, f := range c.stack.families {
				c.samePortTCP(f)
				c.samePortUDP(f)
				c.sameEcho(f)
				c.manyConnections(f)
				c.worldRefuses(f)
				c.worldCannotReach(f)
			}
		})
	}
}

func (c *cluster) errorf(family int, what string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Errorf("IPv%d %s: %v", family, what, err)
	}
}

// fourPods all use source port 5555 to one server.
func fourPods() []string { return []string{"a1", "b1", "c1", "d1"} }

const samePort = 5555

func (c *cluster) samePortTCP(family int) {
	c.t.Helper()
	world := c.end("world")
	l, err := world.listenTCP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	_ = l.SetDeadline(soon())
	ports := map[uint16]bool{}
	for i, name := range fourPods() {
		pod := c.end(name)
		client, err := pod.dialTCP(c.t.Context(), at(pod.addr(family), samePort), addrPort(l.Addr()))
		if err != nil {
			c.errorf(family, "TCP from "+name, err)
			return
		}
		defer client.Close()
		server, err := l.AcceptTCP()
		if err != nil {
			c.errorf(family, "accept from "+name, err)
			return
		}
		defer server.Close()
		seen := addrPort(server.RemoteAddr())
		if seen.Addr() != nodeAddr(1, family) || ports[seen.Port()] {
			c.t.Errorf("IPv%d TCP from %s arrives from %s, want a port of its own of %s", family, name, seen,
				nodeAddr(1, family))
		}
		ports[seen.Port()] = true
		var g errgroup.Group
		k := uint64(10 * i)
		g.Go(func() error { return pump(server, k+2, k+1, 100000) })
		c.errorf(family, "TCP of "+name, errors.Join(pump(client, k+1, k+2, 100000), g.Wait()))
	}
}

func (c *cluster) samePortUDP(family int) {
	c.t.Helper()
	world := c.end("world")
	server, err := world.listenUDP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	go answerAll(server)
	var clients []*net.UDPConn
	for _, name := range fourPods() {
		pod := c.end(name)
		client, err := pod.dialUDP(c.t.Context(), at(pod.addr(family), samePort), addrPort(server.LocalAddr()))
		if err != nil {
			c.t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	// All ask before any reads, several times.
	for round := range 20 {
		for i, client := range clients {
			if _, err := fmt.Fprintf(client, "%d of %d", round, i); err != nil {
				c.errorf(family, "UDP", err)
			}
		}
		for i, client := range clients {
			buf := make([]byte, 100)
			_ = client.SetReadDeadline(time.Now().Add(patience(time.Second)))
			n, err := client.Read(buf)
			if want := fmt.Sprintf("%d of %d", round, i); err != nil || string(buf[:n]) != want {
				c.t.Errorf("IPv%d UDP of %s: got %q, %v; want %q", family, fourPods()[i], buf[:n], err, want)
				return
			}
		}
	}
}

// sameEcho has all pods ping with one identifier, and different sequence numbers.
func (c *cluster) sameEcho(family int) {
	c.t.Helper()
	const id = 77
	dst := c.end("world").addr(family)
	var sockets []*net.IPConn
	for i, name := range fourPods() {
		s, err := c.end(name).listenICMP(c.t.Context(), family)
		if err != nil {
			c.t.Fatal(err)
		}
		defer s.Close()
		sockets = append(sockets, s)
		request, err := echoRequest(family, id, 100*i, 32)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := s.WriteTo(request, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
			c.errorf(family, "ICMP of "+name, err)
		}
	}
	for i, s := range sockets {
		_ = s.SetReadDeadline(time.Now().Add(patience(time.Second)))
		from, seq, err := readEcho(s, family, true, id)
		if err != nil || seq != 100*i || from != dst {
			c.t.Errorf("IPv%d echo of %s: reply %d from %s, %v; want %d from %s", family, fourPods()[i], seq, from,
				err, 100*i, dst)
		}
	}
}

// manyConnections opens 300 from four pods and holds them all before it asks each for its number.
func (c *cluster) manyConnections(family int) {
	c.t.Helper()
	const n = 300
	world := c.end("world")
	l, err := world.listenTCP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	go echoTCP(l)
	clients := make([]net.Conn, n)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() (err error) {
			clients[i], err = c.end(fourPods()[i%4]).dialTCP(c.t.Context(), netip.AddrPort{}, addrPort(l.Addr()))
			return err
		})
	}
	c.errorf(family, "300 connections", g.Wait())
	for i, client := range clients {
		if client == nil || c.t.Failed() {
			continue
		}
		c.errorf(family, fmt.Sprintf("connection %d", i), askTCP(client, uint64(i)))
	}
	for _, client := range clients {
		if client != nil {
			client.Close()
		}
	}
}

// echoTCP sends back what each connection brings.
func echoTCP(l *net.TCPListener) {
	for {
		server, err := l.AcceptTCP()
		if err != nil {
			return // closed
		}
		go func() {
			_, _ = io.Copy(server, server) // a loss shows at the other end
			server.Close()
		}()
	}
}

func askTCP(c net.Conn, n uint64) error {
	if err := c.SetDeadline(soon()); err != nil {
		return err
	}
	var ask, back [8]byte
	binary.BigEndian.PutUint64(ask[:], n)
	if _, err := c.Write(ask[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, back[:]); err != nil {
		return err
	}
	if ask != back {
		return fmt.Errorf("sent %x, got %x", ask, back)
	}
	return nil
}

// worldRefuses asks at closed ports: a reset, and an ICMP port unreachable that names the pod's own packet.
func (c *cluster) worldRefuses(family int) {
	c.t.Helper()
	pod, world := c.end("a1"), c.end("world")
	closed := at(world.addr(family), 9) // discard: no server
	client, err := pod.dialTCP(c.t.Context(), netip.AddrPort{}, closed)
	if err == nil {
		client.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		c.t.Errorf("IPv%d TCP to a closed port: %v, want %v", family, err, unix.ECONNREFUSED)
	}
	asker, err := pod.dialUDP(c.t.Context(), netip.AddrPort{}, closed)
	if err != nil {
		c.t.Fatal(err)
	}
	defer asker.Close()
	_ = asker.SetDeadline(time.Now().Add(patience(2 * time.Second)))
	if _, err := asker.Write([]byte("anybody?")); err != nil {
		c.errorf(family, "UDP to a closed port", err)
	}
	if _, err := asker.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		c.t.Errorf("IPv%d UDP to a closed port: %v, want %v", family, err, unix.ECONNREFUSED)
	}
}

// worldCannotReach sends to every port that a pod's flow could have, from an address that no pod spoke to.
func (c *cluster) worldCannotReach(family int) {
	c.t.Helper()
	pod, world := c.end("a1"), c.end("world")
	server, err := world.listenUDP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	client, err := pod.dialUDP(c.t.Context(), netip.AddrPort{}, addrPort(server.LocalAddr()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	_ = server.SetDeadline(soon())
	if _, err := client.Write([]byte("hello")); err != nil {
		c.t.Fatal(err)
	}
	_, seen, err := server.ReadFromUDPAddrPort(make([]byte, 100))
	if err != nil {
		c.errorf(family, "UDP", err)
		return
	}
	stranger, err := world.listenUDP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer stranger.Close()
	for _, from := range []*net.UDPConn{stranger, server} {
		if _, err := from.WriteToUDPAddrPort([]byte(from.LocalAddr().String()), seen); err != nil {
			c.errorf(family, "answer", err)
		}
	}
	buf := make([]byte, 100)
	_ = client.SetDeadline(time.Now().Add(patience(time.Second)))
	if n, err := client.Read(buf); err != nil || string(buf[:n]) != server.LocalAddr().String() {
		c.t.Errorf("IPv%d: the pod got %q, %v; want what %s sent, and nothing of a stranger", family, buf[:n], err,
			server.LocalAddr())
	}
}
