package labtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// dnsZone is the domain whose names the resolver in the world knows: N.amazonaws.com.
const dnsZone = "amazonaws.com."

// nameServer answers queries for N.amazonaws.com with perName addresses: from number N * perName of the family on.
type nameServer struct{ perName int }

// worldPrefixes have the addresses of names, which are all the world's.
func worldPrefixes() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:65::/112")}
}

// numbered is address number n of names.
func numbered(family, n int) netip.Addr {
	p := worldPrefixes()[0].Addr()
	if family == 6 {
		p = worldPrefixes()[1].Addr()
	}
	b := p.AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ServeDNS implements dns.Handler.
func (s nameServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	m := new(dns.Msg).SetReply(query)
	var n int
	if _, err := fmt.Sscanf(query.Question[0].Name, "%d.", &n); err != nil {
		_ = w.WriteMsg(m.SetRcode(query, dns.RcodeNameError)) // the client asks again
		return
	}
	q := query.Question[0]
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 3600}
	for i := range s.perName {
		switch q.Qtype {
		case dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: header, A: numbered(4, n*s.perName+i).AsSlice()})
		case dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header, AAAA: numbered(6, n*s.perName+i).AsSlice()})
		}
	}
	_ = w.WriteMsg(m)
}

// serveNames has a resolver in the world, and makes the addresses of its names the world's own.
func (c *cluster) serveNames(perName int) {
	c.t.Helper()
	c.serveZone(nameServer{perName})
}

// serveZone is serveNames with another server.
func (c *cluster) serveZone(handler dns.Handler) {
	c.t.Helper()
	world := c.end("world")
	for _, p := range worldPrefixes() {
		_, err := c.World().Exec(c.t.Context(), "ip", "route", "add", "local", p.String(), "dev", "lo")
		check(c.t, err)
	}
	for _, a := range world.addrs {
		conn, err := world.listenUDP(c.t.Context(), at(a, 53), deep())
		check(c.t, err)
		ready := make(chan struct{})
		server := &dns.Server{PacketConn: conn, Handler: handler,
			NotifyStartedFunc: func() { close(ready) }}
		go func() { _ = server.ActivateAndServe() }() // ends with its socket
		<-ready
		c.t.Cleanup(func() { conn.Close() })
	}
}

// acceptAll accepts connections to all addresses of the world's names, and closes them.
func (c *cluster) acceptAll(port uint16) {
	c.t.Helper()
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		l, err := c.end("world").listenTCP(c.t.Context(), at(a, port))
		check(c.t, err)
		c.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return // closed
				}
				conn.Close()
			}
		}()
	}
}

// dnsQuery is a query for the addresses of a name of the zone.
func dnsQuery(family, n int) ([]byte, error) {
	kind := dns.TypeA
	if family == 6 {
		kind = dns.TypeAAAA
	}
	return new(dns.Msg).SetQuestion(fmt.Sprintf("%d.%s", n, dnsZone), kind).Pack()
}

// dnsExchange sends a query with an ID of the caller's, and reads its answer.
func dnsExchange(conn *net.UDPConn, query []byte, id uint16, buffer []byte) (answer []byte, err error) {
	binary.BigEndian.PutUint16(query, id)
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	n, err := conn.Read(buffer)
	if err != nil {
		return nil, err
	}
	b := buffer[:n]
	const header = 12
	if n < header || binary.BigEndian.Uint16(b) != id || b[3]&15 != dns.RcodeSuccess || b[7] == 0 {
		return nil, fmt.Errorf("the answer is %x", b)
	}
	return b, nil
}

// dnsClients are sockets of an end that are connected to the world's resolver.
func (c *cluster) dnsClients(from string, family, n int) []*net.UDPConn {
	c.t.Helper()
	list := make([]*net.UDPConn, n)
	for i := range list {
		conn, err := c.end(from).dialUDP(c.t.Context(), netip.AddrPort{}, at(c.end("world").addr(family), 53))
		check(c.t, err)
		c.t.Cleanup(func() { conn.Close() })
		list[i] = conn
	}
	return list
}

// namedPods is a policy by names for pods with the label app: backend, which resolve them by the proxy.
func namedPods() string { return strings.Join([]string{l7Pods(), awsOnly, askAWS}, "---\n") }

// resolveAll resolves names first to last by a socket each, as a resolver of the libc does.
func resolveNumber(ctx context.Context, from end, server netip.Addr, n int) (a netip.Addr, err error) {
	query, err := dnsQuery(family(server), n)
	if err != nil {
		return a, err
	}
	conn, err := from.dialUDP(ctx, netip.AddrPort{}, at(server, 53))
	if err != nil {
		return a, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience(2 * time.Second))); err != nil {
		return a, err
	}
	answer, err := dnsExchange(conn, query, uint16(n), make([]byte, dns.DefaultMsgSize))
	if err != nil {
		return a, err
	}
	var m dns.Msg
	if err := m.Unpack(answer); err != nil {
		return a, err
	}
	switch r := m.Answer[0].(type) {
	case *dns.A:
		a, _ = netip.AddrFromSlice(r.A.To4())
	case *dns.AAAA:
		a, _ = netip.AddrFromSlice(r.AAAA)
	}
	return a, nil
}
