package labtest

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// bulk sends megabytes each way at once through a Service: from the world by both nodes, and from pods of both.
func (c *cluster) bulk(f int) {
	c.t.Helper()
	a1 := c.end("a1")
	l, err := a1.listenTCP(c.t.Context(), at(a1.addr(f), 8080))
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	for _, by := range []struct {
		from string
		at   netip.AddrPort
	}{
		{"world", at(nodeAddr(1, f), 30000+outBulk)}, {"world", at(nodeAddr(2, f), 30000+outBulk)},
		{"a2", at(serviceAddr(outBulk, f), 80)}, {"s1", at(serviceAddr(outBulk, f), 80)},
		{"a1", at(serviceAddr(outBulk, f), 80)},
	} {
		_ = l.SetDeadline(soon())
		client, err := c.end(by.from).dialTCP(c.t.Context(), netip.AddrPort{}, by.at)
		if err != nil {
			c.t.Errorf("IPv%d %s to %s: %v", f, by.from, by.at, err)
			continue
		}
		server, err := l.AcceptTCP()
		if err != nil {
			c.t.Fatal(err)
		}
		var g errgroup.Group
		g.Go(func() error { return pump(server, 2, 1, fewer(4<<20)) })
		if err := errors.Join(pump(client, 1, 2, fewer(4<<20)), g.Wait()); err != nil {
			c.t.Errorf("IPv%d %s to %s: %v", f, by.from, by.at, err)
		}
		client.Close()
		server.Close()
	}
}

// narrowClient has the way to the client carry less than the backend sends: the backend must learn it, also where it
// knows the client by a node's address.
//
//	far ─── mtu 1400 ─── world ═══ node1, node2
func (c *cluster) narrowClient(far end, f int) {
	c.t.Helper()
	a1 := c.end("a1")
	server, err := a1.listenUDP(c.t.Context(), at(a1.addr(f), 7001), whole(f))
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	for node := 1; node <= 2; node++ {
		client, err := far.dialUDP(c.t.Context(), netip.AddrPort{}, at(nodeAddr(node, f), 30500+outBulk))
		if err != nil {
			c.t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("how large?")); err != nil {
			c.errorf(f, "ask", err)
		}
		_ = server.SetDeadline(soon())
		_, peer, err := server.ReadFromUDPAddrPort(make([]byte, 100))
		if err != nil {
			c.t.Errorf("IPv%d by node%d: %v", f, node, err)
			continue
		}
		eventually(c.t, fmt.Sprintf("IPv%d: the backend learns the MTU behind node%d", f, node), 5*time.Second,
			func() error {
				_, err := server.WriteToUDPAddrPort(make([]byte, 1420-headers(f)), peer)
				if !errors.Is(err, unix.EMSGSIZE) {
					return fmt.Errorf("sends 1420 bytes: %v, want %v", err, unix.EMSGSIZE)
				}
				return nil
			})
		if _, err := server.WriteToUDPAddrPort(make([]byte, 1400-headers(f)), peer); err != nil {
			c.errorf(f, "answer of 1400 bytes", err)
		}
		_ = client.SetDeadline(soon())
		if n, err := client.Read(make([]byte, 1500)); n != 1400-headers(f) || err != nil {
			c.t.Errorf("IPv%d by node%d: got %d bytes, %v; want %d", f, node, n, err, 1400-headers(f))
		}
	}
}

// narrowTunnel has the way to the backend carry less than the client sends: a node tells the client, in the Service's
// name.
func (c *cluster) narrowTunnel(f int) {
	c.t.Helper()
	if c.mode.tunnel == 0 {
		return
	}
	client, err := c.end("world").dialUDP(c.t.Context(), netip.AddrPort{}, at(nodeAddr(2, f), 30500+outNear), whole(f))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	eventually(c.t, fmt.Sprintf("IPv%d: the client learns the tunnel's MTU", f), 5*time.Second, func() error {
		_, err := client.Write(make([]byte, 1500-headers(f)))
		if got, err := pathMTU(client, f); err != nil || got != mtuOf(c.mode, 1500) {
			return fmt.Errorf("path MTU %d, %v; want %d", got, err, mtuOf(c.mode, 1500))
		}
		if !errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("sends 1500 bytes: %v, want %v", err, unix.EMSGSIZE)
		}
		return nil
	})
}
