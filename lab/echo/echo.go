// Package echo is a small server to try a network with: HTTP that names server and client, TCP and UDP that send back
// what comes, each over IPv4 and IPv6. It is also the client for it.
package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Options says what to serve. Ports are 1 to 65535; an empty list serves nothing of that kind.
type Options struct {
	HTTP, TCP, UDP []int
	Who            string    // what to answer as; os.Hostname if empty
	Out            io.Writer // a line for each connection, request and first datagram of a peer
}

// Serve serves until ctx ends; then it returns nil. It returns an error if a port can't be had.
func Serve(ctx context.Context, opts Options) error {
	if opts.Who == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		opts.Who = name
	}
	s := &server{who: opts.Who, out: opts.Out}
	ctx, cancel := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer cancel()
	for kind, ports := range map[string][]int{"http": opts.HTTP, "tcp": opts.TCP, "udp": opts.UDP} {
		for _, port := range ports {
			if err := s.open(ctx, kind, port); err != nil {
				return fmt.Errorf("serve %s: %w", kind, err)
			}
			s.printf("%s on port %d", kind, port)
		}
	}
	<-ctx.Done()
	return nil
}

type server struct {
	who string
	mu  sync.Mutex // one line at a time
	out io.Writer
	wg  sync.WaitGroup
}

func (s *server) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
}

func (s *server) open(ctx context.Context, kind string, port int) error {
	addr := ":" + strconv.Itoa(port)
	if kind == "udp" {
		// One socket a family: the ancillary data that names the local address is not the same.
		err4 := s.openUDP(ctx, "udp4", addr)
		err6 := s.openUDP(ctx, "udp6", addr)
		if err4 != nil && err6 != nil {
			return errors.Join(err4, err6)
		}
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s.closeAfter(ctx, l)
	if kind == "http" {
		h := &http.Server{Handler: http.HandlerFunc(s.answer), ReadHeaderTimeout: 10 * time.Second}
		s.wg.Go(func() { _ = h.Serve(l) }) // ends when the listener is closed
		return nil
	}
	s.wg.Go(func() { s.accept(ctx, l) })
	return nil
}

func (s *server) closeAfter(ctx context.Context, c io.Closer) {
	context.AfterFunc(ctx, func() { _ = c.Close() })
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	s.printf("http %s %s from %s to %s", r.Method, r.URL.Path, r.RemoteAddr,
		r.Context().Value(http.LocalAddrContextKey))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "server  %s\naddress %s\nclient  %s\nrequest %s %s\n",
		s.who, r.Context().Value(http.LocalAddrContextKey), r.RemoteAddr, r.Method, r.URL.Path)
}

func (s *server) accept(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		s.printf("tcp %s from %s", c.LocalAddr(), c.RemoteAddr())
		s.closeAfter(ctx, c)
		s.wg.Go(func() {
			_, _ = io.Copy(c, c) // however it ends, the connection is over
			_ = c.Close()
		})
	}
}

// openUDP answers from the address that was asked, which on a host of several is not always the one that routing
// chooses.
func (s *server) openUDP(ctx context.Context, network, addr string) error {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, network, addr)
	if err != nil {
		return err
	}
	s.closeAfter(ctx, c)
	loop := s.loop6
	if network == "udp4" {
		loop = s.loop4
	}
	s.wg.Go(func() { loop(c) })
	return nil
}

func (s *server) loop4(c net.PacketConn) {
	p := ipv4.NewPacketConn(c)
	if err := p.SetControlMessage(ipv4.FlagDst, true); err != nil {
		s.printf("udp: %v", err)
	}
	seen, buf := newPeers(), make([]byte, 65535)
	for {
		n, cm, from, err := p.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		var back *ipv4.ControlMessage
		if cm != nil {
			back = &ipv4.ControlMessage{Src: cm.Dst}
		}
		if seen.add(from.String()) {
			s.printf("udp from %s", from)
		}
		_, _ = p.WriteTo(buf[:n], back, from) // a peer that can't be reached is its own problem
	}
}

func (s *server) loop6(c net.PacketConn) {
	p := ipv6.NewPacketConn(c)
	if err := p.SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true); err != nil {
		s.printf("udp: %v", err)
	}
	seen, buf := newPeers(), make([]byte, 65535)
	for {
		n, cm, from, err := p.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		var back *ipv6.ControlMessage
		if cm != nil {
			back = &ipv6.ControlMessage{Src: cm.Dst}
			if cm.Dst.IsLinkLocalUnicast() {
				back.IfIndex = cm.IfIndex
			}
		}
		if seen.add(from.String()) {
			s.printf("udp from %s", from)
		}
		_, _ = p.WriteTo(buf[:n], back, from) // a peer that can't be reached is its own problem
	}
}

// peers is the set of announced clients, of bounded size.
type peers map[string]bool

func newPeers() peers { return peers{} }

func (p peers) add(peer string) bool {
	if p[peer] {
		return false
	}
	if len(p) >= 1024 {
		clear(p)
	}
	p[peer] = true
	return true
}
