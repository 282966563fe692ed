package labtest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"myelin/bpf"
)

// TestQUIC has the world send QUIC packets to a load balancer, each from another port: the connection ID, not the port,
// must select the server, by tc and in XDP; also one in maintenance, and none that is gone.
//
//	world ══ 192.0.2.1, 2001:db8:50::1 :443 ══► lb ══► server :8443 (ID 1), :8444 (ID 2)
func TestQUIC(t *testing.T) {
	for _, acceleration := range []string{"disabled", "native"} {
		t.Run(acceleration, func(t *testing.T) {
			t.Parallel()
			g := upStandalone(t, map[string]any{"loadBalancer.acceleration": acceleration})
			hook := bpf.DatapathHookHOOK_FROM_WIRE
			if acceleration == "native" {
				if kernelBefore(6, 3) {
					t.Skip("whether a veth's other end takes frames is not known")
				}
				g.plainLinks()
				g.accelerated("node1", "native on eth0")
				hook = bpf.DatapathHookHOOK_FROM_WIRE_XDP
			}
			for _, f := range g.stack.families {
				before := g.outcomeAt("node1", hook, bpf.DatapathOutcomeFORWARD_QUIC)
				g.quic(f)
				if n := g.outcomeAt("node1", hook, bpf.DatapathOutcomeFORWARD_QUIC) - before; n < 20 {
					t.Errorf("IPv%d: %d flows were selected by connection IDs at hook %d, want 20 at least", f, n, hook)
				}
			}
		})
	}
}

// quicPacket is a packet with a short header and a connection ID with the server ID.
func quicPacket(server byte) []byte {
	return append([]byte{0x40, 0x07, 0, 0, 0, server}, bytes.Repeat([]byte{0xaa}, 30)...)
}

func (g *standaloneLab) quic(f int) {
	t := g.t
	t.Helper()
	server, vip := nodeAddr(2, f), lbAddr(1, f)
	for i := range 2 {
		c, err := g.end("node2").listenUDP(t.Context(), at(server, uint16(8443+i)))
		check(t, err)
		defer c.Close()
		go answerAs(c, byte(i+1))
	}
	upsert := func(servers ...int) {
		args := []string{"service", "upsert", "quic", "--frontend", at(vip, 443).String() + "/UDP",
			"--quic-server-id-length", "4"}
		for _, i := range servers {
			args = append(args, "--backend", fmt.Sprintf("%s,server-id=%s", at(server, uint16(8442+i)),
				hex.EncodeToString([]byte{0, 0, 0, byte(i)})))
		}
		g.must(args...)
	}
	upsert(1, 2)
	g.routeOutside(1)
	g.soonServes(vip, 1, 1)
	for i := range 20 {
		id := byte(i%2 + 1)
		if got, err := g.asksQUIC(vip, id); err != nil || got != id {
			t.Errorf("IPv%d: packet %d with ID %d was answered by %d, %v", f, i, id, got, err)
		}
	}
	first := at(server, 8443).String() + "/UDP"
	g.must("backend", "set", first, "--state", "maintenance")
	g.soonServes(vip, 9, 2) // an ID that no server has
	for range 5 {
		if got, err := g.asksQUIC(vip, 1); err != nil || got != 1 {
			t.Errorf("IPv%d: a packet with ID 1 was answered by %d in maintenance, %v", f, got, err)
		}
	}
	upsert(2)
	g.soonServes(vip, 1, 2)
	g.must("service", "delete", "quic")
}

// soonServes waits until ten packets with the ID in a row are answered by the server.
func (g *standaloneLab) soonServes(vip netip.Addr, id, server byte) {
	g.t.Helper()
	eventually(g.t, vip.String(), 15*time.Second, func() error {
		for range 10 {
			if got, err := g.asksQUIC(vip, id); err != nil || got != server {
				return fmt.Errorf("ID %d: answered by %d, %w; want %d", id, got, err, server)
			}
		}
		return nil
	})
}

// asksQUIC sends a packet from a port of its own, and returns the server that answered. The kernel would choose a port
// twice now and then, which has a flow already.
func (g *standaloneLab) asksQUIC(vip netip.Addr, id byte) (server byte, err error) {
	g.quicPort++
	from := netip.AddrPortFrom(worldAddr(family(vip)), 10000+g.quicPort)
	c, err := g.end("world").dialUDP(g.t.Context(), from, at(vip, 443))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience(time.Second))); err != nil {
		return 0, err
	}
	if _, err := c.Write(quicPacket(id)); err != nil {
		return 0, err
	}
	answer := make([]byte, 1)
	_, err = c.Read(answer)
	return answer[0], err
}

// answerAs answers each packet with the server's number, until the socket is closed.
func answerAs(c *net.UDPConn, server byte) {
	buf := make([]byte, 2048)
	for {
		_, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteToUDPAddrPort([]byte{server}, from) // a loss shows at the other end
	}
}
