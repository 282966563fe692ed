package labtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// path is a way that packets take between nodes, and sends what is made of a text by it.
type path struct {
	name string
	send func(text []byte) error
}

// The ports of pods that Services of tests lead to.
const (
	targetTCP = 8080
	targetUDP = 7001
)

// webService is a Service whose only backend is a2, with ports of nodes.
const webService = 20

// pathsOf are the ways between the pods and nodes of a family; third: node3 and its pods, too.
func (c *cluster) pathsOf(f int, third bool) (list []path) {
	talk := func(from, to string) {
		list = append(list, path{from + "→" + to, func(text []byte) error { return c.talk(from, to, f, text) }})
	}
	by := func(name, from string, dst netip.Addr, udp, tcp uint16) {
		list = append(list, path{name, func(text []byte) error {
			return c.talkBy(from, "a2", f, at(dst, udp), at(dst, tcp), text)
		}})
	}
	for _, way := range [][2]string{{"a1", "a2"}, {"a2", "a1"}, {"a1", "node2"}, {"node2", "a1"}} {
		talk(way[0], way[1])
	}
	by("a1→Service→a2", "a1", serviceAddr(webService, f), 53, 80)
	list = append(list, path{"node1→Service→a2", func(text []byte) error { return c.callWeb("node1", f, text) }})
	if third {
		for _, way := range [][2]string{{"a1", "a3"}, {"a3", "a2"}, {"node1", "a3"}, {"a3", "node1"}} {
			talk(way[0], way[1])
		}
		by("a1→node port of node3→a2", "a1", nodeAddr(3, f), 30500+webService, 30000+webService)
	}
	return append(list, path{"8 KB a1→a2", func(text []byte) error {
		a, b := c.end("a1"), c.end("a2")
		return datagrams(c.t.Context(), a, b, b.addr(f), bytes.Repeat(text, 8192/len(text)), fragmented(f))
	}}, path{"closed port of b2", func(text []byte) error { return c.refused("b1", "b2", f, text) }})
}

// talkBy is talk by an address and ports that lead to the ports of Services.
func (c *cluster) talkBy(from, to string, f int, udp, tcp netip.AddrPort, text []byte) error {
	a, b, ctx := c.end(from), c.end(to), c.t.Context()
	server, err := b.listenUDP(ctx, at(b.addr(f), targetUDP))
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := a.dialUDP(ctx, netip.AddrPort{}, udp)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := converse(client, server, bytes.Repeat(text, 20)); err != nil {
		return err
	}
	l, err := b.listenTCP(ctx, at(b.addr(f), targetTCP))
	if err != nil {
		return err
	}
	defer l.Close()
	stream, err := a.dialTCP(ctx, netip.AddrPort{}, tcp)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer stream.Close()
	if err := l.SetDeadline(soon()); err != nil {
		return err
	}
	answer, err := l.AcceptTCP()
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer answer.Close()
	return swap(stream, answer, bytes.Repeat(text, 4000))
}

// callWeb has a process of a node, whose sockets the datapath knows, send to the Service by UDP, and gets an answer.
func (c *cluster) callWeb(node string, f int, text []byte) error {
	a2 := c.end("a2")
	server, err := a2.listenUDP(c.t.Context(), at(a2.addr(f), targetUDP))
	if err != nil {
		return err
	}
	defer server.Close()
	if err := server.SetDeadline(soon()); err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 2*len(text))
		if n, peer, err := server.ReadFromUDPAddrPort(buffer); err == nil {
			_, _ = server.WriteToUDPAddrPort(buffer[:n], peer)
		}
	}()
	const script = `exec 3<>"/dev/udp/$1/53"; printf %s "$2" >&3; exec head -c "${#2}" <&3`
	out, err := c.Node(node).Exec(c.t.Context(), "timeout", fmt.Sprint(patience(2*time.Second).Seconds()), "bash", "-c",
		script, "bash", serviceAddr(webService, f).String(), string(text))
	if err == nil && out != string(text) {
		err = fmt.Errorf("the answer is %q", out)
	}
	return err
}

// refused sends to a port that is closed, and waits for the ICMP error, which has a part of what was sent.
func (c *cluster) refused(from, to string, f int, text []byte) error {
	s, err := c.end(from).dialUDP(c.t.Context(), netip.AddrPort{}, at(c.end(to).addr(f), 9), errorQueue(f))
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Write(bytes.Repeat(text, 4)); err != nil {
		return err
	}
	_, err = readError(s, patience(2*time.Second))
	return err
}

// whisper sends echo requests and datagrams to places until the context ends, whatever becomes of them.
func (c *cluster) whisper(ctx context.Context, from string, text []byte, to ...string) {
	c.t.Helper()
	for _, f := range c.stack.families {
		echoes, err := c.end(from).listenICMP(ctx, f)
		check(c.t, err)
		socket, err := c.end(from).listenUDP(ctx, at(map[int]netip.Addr{4: netip.IPv4Unspecified(),
			6: netip.IPv6Unspecified()}[f], 0))
		check(c.t, err)
		var targets []netip.Addr
		for _, name := range to {
			if name != from {
				targets = append(targets, c.end(name).addr(f))
			}
		}
		go func() {
			defer echoes.Close()
			defer socket.Close()
			for n := 0; ctx.Err() == nil; n++ {
				for _, dst := range targets {
					_, _ = echoes.WriteTo(markedEcho(f, n, text), &net.IPAddr{IP: dst.AsSlice()})
					if n%10 == 0 { // what is closed answers rarely
						_, _ = socket.WriteToUDPAddrPort(bytes.Repeat(text, 20), at(dst, 9))
					}
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
}

// markedEcho is an echo request with a text.
func markedEcho(f, seq int, text []byte) []byte {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 4711, Seq: seq & 0xffff,
		Data: bytes.Repeat(text, 4)}}
	if f == 6 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	data, _ := m.Marshal(nil) // can't fail; the kernel fills in the checksum of ICMPv6
	return data
}
