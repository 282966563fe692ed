package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
)

// recorder keeps what is announced, and tells what the datapath would.
type recorder struct {
	trace func(*Flow) Trace
	fails error

	mu   sync.Mutex
	all  []Flow
	open map[Flow]bool
}

func (*recorder) Mark() uint32 { return 0x6d000000 }
func (*recorder) DSR() Via     { return "IPIP" }

func (r *recorder) Open(f *Flow) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.all = append(r.all, *f)
	r.open[*f] = true
	return nil
}

func (r *recorder) Close(f *Flow) (Trace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open[*f] {
		return Trace{}, errors.New("closed twice")
	}
	delete(r.open, *f)
	return r.trace(f), nil
}

// ports are those that flows had at frontends, each once.
func (r *recorder) ports() string {
	var ports []uint16
	for _, f := range r.all {
		ports = append(ports, f.Port)
	}
	return fmt.Sprint(slices.Compact(ports))
}

// TestRunAsClient: what is announced to the datapath, and what becomes of its traces, with real servers.
func TestRunAsClient(t *testing.T) {
	nettest.Root(t) // to mark sockets
	for host, vip := range map[string]netip.Addr{"127.0.0.1": netip.MustParseAddr("192.0.2.10"),
		"::1": netip.MustParseAddr("2001:db8::a")} {
		frontends := []Frontend{{netip.AddrPortFrom(vip, 80), 6}, {netip.AddrPortFrom(vip.Next(), 81), 6}}
		s := serve(t, host)
		first := frontends[0].Address.String()
		lost := fmt.Sprintf("no answer within 200ms by IPIP for %s, though %s accepts direct connections: clients' "+
			"packets, or replies from %s, are lost", first, s.silent, frontends[0].Address.Addr())
		own := []Frontend{{netip.AddrPortFrom(netip.MustParseAddr(host), 80), 6}}
		silence := Check{Kind: HTTP, Timeout: 200 * time.Millisecond}
		for name, c := range map[string]struct {
			check     Check
			at        netip.AddrPort
			frontends []Frontend
			trace     Trace
			fails     error
			want      string
			ports     string // of announced flows
		}{
			"tcp":  {Check{Kind: TCP}, s.tcp, frontends, Trace{DSR: true}, nil, "IPIP", "[80 81]"},
			"http": {Check{Kind: HTTP}, s.tcp, frontends, Trace{DSR: true}, nil, "IPIP", "[80 81]"},
			"grpc": {Check{Kind: GRPC}, s.grpc, frontends, Trace{DSR: true}, nil, "IPIP", "[80 81]"},
			"another port": {Check{Kind: TCP, Port: s.tcp.Port()}, s.closed, frontends, Trace{}, nil, "direct",
				fmt.Sprintf("[%d]", s.tcp.Port())},
			"direct":      {Check{Kind: TCP}, s.tcp, frontends, Trace{}, nil, "direct", "[80]"},
			"early":       {Check{Kind: TCP}, s.tcp, frontends, Trace{Early: true}, nil, "direct early", "[80 81]"},
			"no frontend": {Check{Kind: TCP}, s.tcp, nil, Trace{DSR: true}, nil, "direct", "[]"},
			"own address": {Check{Kind: TCP}, s.tcp, own, Trace{DSR: true}, nil, "direct", "[]"},
			"refused": {Check{Kind: TCP}, s.closed, frontends, Trace{DSR: true, Replies: 1}, nil,
				"IPIP connect: connection refused by IPIP for " + first, "[80]"},
			"refused, early": {Check{Kind: TCP}, s.closed, frontends, Trace{Early: true}, nil,
				"direct early connect: connection refused", "[80]"},
			"http, missing": {Check{Kind: HTTP, Path: "/none"}, s.tcp, frontends, Trace{DSR: true, Replies: 9}, nil,
				"IPIP HTTP status 404 by IPIP for " + first, "[80]"},
			"lost": {silence, s.silent, frontends, Trace{DSR: true}, nil, "IPIP " + lost, "[80]"},
			"slow": {silence, s.silent, frontends, Trace{DSR: true, Replies: 3}, nil,
				"IPIP no answer within 200ms by IPIP for " + first, "[80]"},
			"map is full": {Check{Kind: TCP}, s.tcp, frontends, Trace{}, errors.New("no space"), "direct no space",
				"[]"},
		} {
			r := &recorder{trace: func(*Flow) Trace { return c.trace }, fails: c.fails, open: map[Flow]bool{}}
			got := RunAsClient(t.Context(), c.check.WithDefaults(), c.at, r, c.frontends)
			text := string(got.Via)
			if got.Early {
				text += " early"
			}
			if got.Err != nil {
				text += " " + got.Err.Error()
			}
			if text != c.want || r.ports() != c.ports || len(r.open) > 0 {
				t.Errorf("%s of %s: got %q, ports %s, %d still open; want %q, ports %s", name, host, text, r.ports(),
					len(r.open), c.want, c.ports)
			}
		}
	}
}

// TestFlowIsTheSocket: the flow that is announced before the first packet is the connection that the server sees, which
// ends with a reset; a frontend that fails after another has passed fails the check.
func TestFlowIsTheSocket(t *testing.T) {
	nettest.Root(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		at := netip.MustParseAddrPort(l.Addr().String())
		r := &recorder{open: map[Flow]bool{}}
		r.trace = func(*Flow) Trace { return Trace{DSR: true} }
		frontends := []Frontend{{Address: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::a"), 80)}}
		got := RunAsClient(t.Context(), Check{Kind: TCP}.WithDefaults(), at, r, frontends)
		conn, err := l.Accept()
		if err != nil || got.Err != nil {
			t.Fatal(err, got.Err)
		}
		defer conn.Close()
		from := netip.MustParseAddrPort(conn.RemoteAddr().String())
		if len(r.all) != 1 || r.all[0].Local != from || r.all[0].Backend != at {
			t.Errorf("announced %v, the server saw %s", r.all, from)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection ended with %v, want a reset", err)
		}
	}
}

// TestMarked: sockets have the mark and the segment size before they connect. No flow begins after the end.
func TestMarked(t *testing.T) {
	nettest.Root(t)
	r := &recorder{open: map[Flow]bool{}, trace: func(*Flow) Trace { return Trace{} }}
	tr := newTravel(r, Frontend{}, 0)
	prepare := func() (fd int, err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd, tr.prepare(fd, &Flow{}, netip.IPv6Loopback())
	}
	fd, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
	if err != nil || uint32(mark) != r.Mark() {
		t.Errorf("the mark is %#x, %v", mark, err)
	}
	if size, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil || size != maxSegment {
		t.Errorf("the largest segment is %d, %v", size, err)
	}
	if _, err := tr.end(); err != nil || len(r.open) > 0 {
		t.Errorf("%v, %d flows are open", err, len(r.open))
	}
	if _, err := prepare(); !errors.Is(err, errEnded) || len(r.all) != 1 {
		t.Errorf("a flow begins after the end: %v", err)
	}
}
