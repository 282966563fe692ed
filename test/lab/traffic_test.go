package labtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sync/errgroup"
)

func native32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// at is a port of an address.
func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func portOf(a net.Addr) uint16 { return addrPort(a).Port() }

func addrPort(a net.Addr) netip.AddrPort {
	p := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

func soon() time.Time { return time.Now().Add(patience(10 * time.Second)) }

// stream is bytes that only this seed has.
func stream(seed uint64, n int) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return io.LimitReader(rand.NewChaCha8(key), int64(n))
}

// pump sends and receives n bytes at once, and compares each.
func pump(c net.Conn, send, receive uint64, n int) error {
	if err := c.SetDeadline(soon()); err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error {
		_, err := io.Copy(struct{ io.Writer }{c}, stream(send, n))
		return err
	})
	want, got := make([]byte, 64<<10), make([]byte, 64<<10)
	source := stream(receive, n)
	for left := n; left > 0; {
		k := min(left, len(want))
		if _, err := io.ReadFull(source, want[:k]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got[:k]); err != nil {
			return fmt.Errorf("%d of %d bytes are missing: %w", left, n, err)
		}
		if !bytes.Equal(want[:k], got[:k]) {
			return fmt.Errorf("byte %d or one soon after is wrong", n-left)
		}
		left -= k
	}
	return g.Wait()
}

// tcp sends n bytes each way at once and returns the client's address at the server.
func tcp(ctx context.Context, from, to end, dst netip.Addr, n int) (netip.Addr, error) {
	client, server, err := connect(ctx, from, to, netip.AddrPort{}, at(dst, 0))
	if err != nil {
		return netip.Addr{}, err
	}
	defer client.Close()
	defer server.Close()
	var g errgroup.Group
	g.Go(func() error { return pump(server, 2, 1, n) })
	if err := errors.Join(pump(client, 1, 2, n), g.Wait()); err != nil {
		return netip.Addr{}, err
	}
	return addrPort(server.RemoteAddr()).Addr(), nil
}

// connect opens a connection between two ends; src may be zero, the port of dst may be 0.
func connect(ctx context.Context, from, to end, src, dst netip.AddrPort) (client, server *net.TCPConn, err error) {
	l, err := to.listenTCP(ctx, dst)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if err := l.SetDeadline(soon()); err != nil {
		return nil, nil, err
	}
	client, err = from.dialTCP(ctx, src, at(dst.Addr(), portOf(l.Addr())))
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	server, err = l.AcceptTCP()
	if err != nil {
		client.Close()
		return nil, nil, fmt.Errorf("accept: %w", err)
	}
	return client, server, nil
}

// connectUDP opens a socket of an address of to, and one of from that is connected to it, with options of each.
func connectUDP(ctx context.Context, from, to end, dst netip.Addr, client, server []option,
) (c, s *net.UDPConn, err error) {
	if s, err = to.listenUDP(ctx, at(dst, 0), server...); err != nil {
		return nil, nil, err
	}
	if c, err = from.dialUDP(ctx, netip.AddrPort{}, at(dst, portOf(s.LocalAddr())), client...); err != nil {
		s.Close()
		return nil, nil, err
	}
	return c, s, nil
}

// udp sends a datagram of n bytes and has it answered; it returns the client's address at the server. Three attempts:
// UDP may lose.
func udp(ctx context.Context, from, to end, dst netip.Addr, n int, options ...option) (seen netip.Addr, err error) {
	server, err := to.listenUDP(ctx, at(dst, 0), options...)
	if err != nil {
		return seen, err
	}
	defer server.Close()
	client, err := from.dialUDP(ctx, netip.AddrPort{}, at(dst, portOf(server.LocalAddr())), options...)
	if err != nil {
		return seen, err
	}
	defer client.Close()
	for range 3 {
		if seen, err = askUDP(client, server, n); err == nil {
			return seen, nil
		}
	}
	return seen, err
}

func askUDP(client, server *net.UDPConn, n int) (netip.Addr, error) {
	var none netip.Addr
	wait := time.Now().Add(patience(time.Second))
	if err := errors.Join(client.SetDeadline(wait), server.SetDeadline(wait)); err != nil {
		return none, err
	}
	ask, buf := make([]byte, n), make([]byte, n+1)
	if _, err := io.ReadFull(stream(uint64(n), n), ask); err != nil {
		return none, err
	}
	if _, err := client.Write(ask); err != nil {
		return none, err
	}
	k, peer, err := server.ReadFromUDPAddrPort(buf)
	if err != nil || !bytes.Equal(buf[:k], ask) {
		return none, fmt.Errorf("server got %d of %d bytes: %w", k, n, errOr(err, "other bytes than were sent"))
	}
	if _, err := server.WriteToUDPAddrPort(ask, peer); err != nil {
		return none, err
	}
	if k, err = client.Read(buf); err != nil || !bytes.Equal(buf[:k], ask) {
		return none, fmt.Errorf("client got %d of %d bytes: %w", k, n, errOr(err, "other bytes than were sent"))
	}
	return peer.Addr().Unmap(), nil
}

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// echo is one ICMP echo request, and what its parts are called in each family.
func echoRequest(family, id, seq, size int) ([]byte, error) {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: seq, Data: make([]byte, size)}}
	if family == 6 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	return m.Marshal(nil) // the kernel fills in the checksum of ICMPv6
}

// readEcho waits for an echo request, or a reply, with the identifier.
func readEcho(c *net.IPConn, family int, reply bool, id int) (from netip.Addr, seq int, err error) {
	kinds := map[bool]icmp.Type{false: ipv4.ICMPTypeEcho, true: ipv4.ICMPTypeEchoReply}
	proto := 1
	if family == 6 {
		kinds = map[bool]icmp.Type{false: ipv6.ICMPTypeEchoRequest, true: ipv6.ICMPTypeEchoReply}
		proto = 58
	}
	buf := make([]byte, 65536)
	for {
		n, peer, err := c.ReadFrom(buf)
		if err != nil {
			return from, 0, err
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || m.Type != kinds[reply] {
			continue
		}
		if echo, ok := m.Body.(*icmp.Echo); ok && (echo.ID == id || id < 0) {
			a, ok := netip.AddrFromSlice(peer.(*net.IPAddr).IP)
			if !ok {
				return from, 0, fmt.Errorf("no address in %v", peer)
			}
			return a.Unmap(), echo.Seq, nil
		}
	}
}

// ping sends one echo request and returns the source address at the other side. A masqueraded identifier changes on the
// way, so only the reply's is compared.
func ping(ctx context.Context, from, to end, dst netip.Addr, size int) (seen netip.Addr, err error) {
	f := family(dst)
	server, err := to.listenICMP(ctx, f)
	if err != nil {
		return seen, err
	}
	defer server.Close()
	client, err := from.listenICMP(ctx, f)
	if err != nil {
		return seen, err
	}
	defer client.Close()
	for seq := range 3 {
		id := 1 + rand.IntN(65535)
		wait := time.Now().Add(patience(time.Second))
		if err := errors.Join(client.SetDeadline(wait), server.SetDeadline(wait)); err != nil {
			return seen, err
		}
		request, err2 := echoRequest(f, id, seq, size)
		if err2 != nil {
			return seen, err2
		}
		if _, err = client.WriteTo(request, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
			return seen, err
		}
		if _, _, err = readEcho(client, f, true, id); err != nil {
			continue
		}
		if seen, _, err = readEcho(server, f, false, -1); err == nil {
			return seen, nil
		}
	}
	return seen, fmt.Errorf("ping %s: %w", dst, err)
}
