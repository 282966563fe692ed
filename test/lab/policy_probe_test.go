package labtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Numbers of protocols that package net has no names for.
const (
	protoICMP, protoTCP, protoUDP, protoICMP6, protoSCTP = 1, 6, 17, 58, 132
)

// question is one flow to try, and whether it must come through.
type question struct {
	from, to end
	src      netip.Addr // to send from; zero: what the kernel chooses
	dst      netip.AddrPort
	proto    uint8 // of ICMP the port of dst is the type
	want     bool
}

// verdicts asks all at once, and returns for each what is wrong with it, or nil. What must not come through has as long
// as the slowest of the others, and 300 ms more.
func (p *policed) verdicts(ctx context.Context, questions []question) []error {
	errs := make([]error, len(questions))
	patient, cancel := context.WithTimeout(ctx, patience(5*time.Second))
	defer cancel()
	brief, end := context.WithCancel(patient)
	defer end()
	var allowed, denied sync.WaitGroup
	for i, q := range questions {
		if q.want {
			allowed.Go(func() { errs[i] = p.ask(patient, q) })
			continue
		}
		denied.Go(func() {
			switch err := p.ask(brief, q); {
			case err == nil:
				errs[i] = errors.New("came through")
			case !silent(err):
				errs[i] = err
			}
		})
	}
	allowed.Wait()
	time.Sleep(patience(300 * time.Millisecond))
	end()
	denied.Wait()
	return errs
}

// silent is an error that says that nothing was heard for as long as the client listened. A raw socket of IPv6 also
// hears that its own node dropped a packet.
func silent(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// ask sends something and returns nil where it was answered; of ICMP without answers, where it arrived.
func (p *policed) ask(ctx context.Context, q question) error {
	token := p.tokens.Add(1)
	switch q.proto {
	case protoTCP:
		return q.tcp(ctx, token)
	case protoUDP:
		c, err := q.from.dialUDP(ctx, at(q.src, 0), q.dst)
		if err != nil {
			return err
		}
		return repeat(ctx, c, func() error {
			_, err := c.Write(binary.BigEndian.AppendUint64(nil, token))
			return err
		}, token)
	case protoSCTP:
		if p.associate {
			_, _, err := q.from.sctp(ctx, q.src, q.dst)
			return err
		}
	}
	return p.askRaw(ctx, q, token)
}

func (q question) tcp(ctx context.Context, token uint64) error {
	c, err := q.from.dialTCP(ctx, at(q.src, 0), q.dst)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.SetLinger(0); err != nil { // thousands of them would use up the ports
		return err
	}
	sent, got := binary.BigEndian.AppendUint64(nil, token), make([]byte, 8)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(sent, got) {
		return errOr(err, "another answer than was sent")
	}
	return nil
}

// repeat sends every 200 ms until an answer has the token in it.
func repeat(ctx context.Context, c net.Conn, send func() error, token uint64) error {
	defer c.Close()
	buf := make([]byte, 2048)
	for ctx.Err() == nil {
		if err := send(); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		for {
			n, err := c.Read(buf)
			if err == nil && bytes.Contains(buf[:n], binary.BigEndian.AppendUint64(nil, token)) {
				stop()
				return nil
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				stop()
				return err
			}
			if err != nil {
				break
			}
		}
		stop()
	}
	return ctx.Err()
}

// askRaw sends by a raw socket. An echo request, and SCTP's INIT, are answered; other messages leave their token where
// they arrive.
func (p *policed) askRaw(ctx context.Context, q question, token uint64) error {
	src := q.src
	if !src.IsValid() {
		src = map[int]netip.Addr{4: netip.IPv4Unspecified(), 6: netip.IPv6Unspecified()}[family(q.dst.Addr())]
	}
	c, err := q.from.listenIP(ctx, rawNetwork(q.dst.Addr(), q.proto), src)
	if err != nil {
		return err
	}
	message, err := rawMessage(q, token)
	if err != nil {
		return err
	}
	to := &net.IPAddr{IP: q.dst.Addr().AsSlice()}
	send := func() error {
		_, err := c.WriteTo(message, to)
		return err
	}
	if q.proto == protoSCTP || q.dst.Port() == 8 || q.dst.Port() == 128 {
		return repeat(ctx, answersOnly{c, q}, send, token)
	}
	defer c.Close()
	for ctx.Err() == nil {
		if err := send(); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
		if _, arrived := p.arrived.LoadAndDelete(token); arrived {
			return nil
		}
	}
	return ctx.Err()
}

func rawNetwork(a netip.Addr, proto uint8) string { return fmt.Sprintf("ip%d:%d", family(a), proto) }

// answersOnly is a raw socket that reads what the other end answers: it also hears requests that others send to its own
// place.
type answersOnly struct {
	net.Conn
	q question
}

func (a answersOnly) Read(b []byte) (int, error) {
	for {
		n, from, err := a.Conn.(*net.IPConn).ReadFrom(b)
		if err != nil {
			return n, err
		}
		peer, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		answer := n > 3 && (a.q.proto == protoSCTP && binary.BigEndian.Uint16(b) == a.q.dst.Port() || b[0] == 0 ||
			b[0] == 129)
		if answer && peer.Unmap() == a.q.dst.Addr() {
			return n, nil
		}
	}
}

// rawMessage is an ICMP message, or a packet of SCTP with one chunk, with the token in it.
func rawMessage(q question, token uint64) ([]byte, error) {
	body := binary.BigEndian.AppendUint64(nil, token)
	if q.proto == protoSCTP {
		return sctpPacket(uint16(20000+token%40000), q.dst.Port(), body), nil
	}
	var kind icmp.Type = ipv4.ICMPType(q.dst.Port())
	if q.proto == protoICMP6 {
		kind = ipv6.ICMPType(q.dst.Port())
	}
	echo := icmp.Echo{ID: int(token & 0xffff), Seq: 1, Data: append(body, make([]byte, 8)...)}
	if kind == ipv4.ICMPTypeEcho || kind == ipv6.ICMPTypeEchoRequest {
		return (&icmp.Message{Type: kind, Body: &echo}).Marshal(nil)
	}
	return (&icmp.Message{Type: kind, Body: &icmp.RawBody{Data: append(make([]byte, 4), echo.Data...)}}).Marshal(nil)
}

// sctpPacket is a common header and an INIT (RFC 9260, sections 3.1 and 3.3.2); the initiate tag and what follows is
// the body.
func sctpPacket(src, dst uint16, body []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = append(b, make([]byte, 8)...)
	b = append(b, 1, 0, 0, byte(4+16))
	b = append(b, append(body, make([]byte, 16-len(body))...)...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// serve answers at each port that is asked, until ctx ends.
func (p *policed) serve(ctx context.Context) error {
	var g errgroup.Group
	for s := range p.served {
		g.Go(func() error {
			if err := p.serveAt(ctx, s); err != nil {
				return fmt.Errorf("serve %+v: %w", s, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (p *policed) serveAt(ctx context.Context, s servedPort) error {
	e := p.places[s.place]
	a := e.addr(map[bool]int{true: 4, false: 6}[s.is4])
	switch s.proto {
	case protoTCP:
		l, err := e.listenTCP(ctx, at(a, s.port))
		if err == nil {
			p.until(ctx, l, func() { acceptAll(ctx, l) })
		}
		return err
	case protoUDP:
		c, err := e.listenUDP(ctx, at(a, s.port))
		if err == nil {
			p.until(ctx, c, func() { answerAll(c) })
		}
		return err
	}
	c, err := e.listenIP(ctx, rawNetwork(a, s.proto), a)
	if err == nil {
		p.until(ctx, c, func() { p.answerRaw(c, s) })
	}
	return err
}

// until runs work, and closes what it works with when ctx ends.
func (p *policed) until(ctx context.Context, c io.Closer, work func()) {
	context.AfterFunc(ctx, func() { _ = c.Close() })
	p.servers.Go(work)
}

// acceptAll sends back the first bytes of each connection.
func acceptAll(ctx context.Context, l *net.TCPListener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return // closed
		}
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
			defer stop()
			_, _ = io.Copy(c, c) // the other end closes, or resets
		})
	}
}

// answerRaw notes the tokens of messages that no kernel answers, and answers SCTP's.
func (p *policed) answerRaw(c *net.IPConn, s servedPort) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		switch {
		case err != nil || n < 24:
		case s.proto != protoSCTP:
			if uint16(buf[0]) == s.port {
				p.arrived.Store(binary.BigEndian.Uint64(buf[8:]), true)
			}
		// a client, behind masquerade too, and no answer
		case binary.BigEndian.Uint16(buf[2:]) == s.port && binary.BigEndian.Uint16(buf) >= 1024:
			// a loss shows at the other end
			_, _ = c.WriteTo(sctpPacket(s.port, binary.BigEndian.Uint16(buf), bytes.Clone(buf[16:24])), from)
		}
	}
}

// probing is what servers and clients of a cluster share.
type probing struct {
	tokens  atomic.Uint64
	arrived sync.Map // tokens
	servers sync.WaitGroup
	places  map[string]end
	served  map[servedPort]bool
	// associate asks by the kernel's SCTP, in place of raw packets
	associate bool
}

// servedPort is where a server listens; port is the type of ICMP messages.
type servedPort struct {
	place string
	is4   bool
	proto uint8
	port  uint16
}
