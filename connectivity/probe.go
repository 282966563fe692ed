package connectivity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"myelin/lab/echo"
)

// Probe is one thing that a pod tries.
type Probe struct {
	// URL says what: http, tcp, udp (HOST:PORT, which sends back what comes), icmp
	// (HOST), or dns4 and dns6 (a name).
	URL string `json:"url"`
	// Size is how many bytes to send, 1..1048576 for tcp, at most 65000 for udp and
	// icmp; 0: 32.
	Size int `json:"size,omitempty"`
	// Text is what tcp, udp and icmp send, again and again; empty: a pattern.
	Text string `json:"text,omitempty"`
	// Count is how often, each time anew; 0: once.
	Count int `json:"count,omitempty"`
	// Timeout bounds each time.
	Timeout time.Duration `json:"timeout"`
}

// Answer is what came of a Probe.
type Answer struct {
	// Error is why it failed, the first time that it did; empty: never.
	Error string `json:"error,omitempty"`
	// By are the names of the servers that answered over http, or the addresses of dns; each
	// once, sorted.
	By []string `json:"by,omitempty"`
	// Client is the address that the server saw, over http.
	Client string `json:"client,omitempty"`
	// Took is the longest time.
	Took time.Duration `json:"took"`
}

// Run tries all, one after the other.
func Run(ctx context.Context, probes []Probe) []Answer {
	answers := make([]Answer, len(probes))
	for i, p := range probes {
		answers[i] = p.run(ctx)
	}
	return answers
}

func (p Probe) run(ctx context.Context) (a Answer) {
	for range max(p.Count, 1) {
		ctx, cancel := context.WithTimeout(ctx, p.Timeout)
		begin := time.Now()
		by, client, err := p.once(ctx)
		cancel()
		a.Took = max(a.Took, time.Since(begin))
		a.By, a.Client = append(a.By, by...), cmp.Or(client, a.Client)
		if err != nil {
			a.Error = p.words(err)
			break
		}
	}
	slices.Sort(a.By)
	a.By = slices.Compact(a.By)
	return a
}

// defaultSize is what is sent where nothing is said, in bytes.
const defaultSize = 32

func (p Probe) once(ctx context.Context) (by []string, client string, err error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil, "", err
	}
	switch u.Scheme {
	case "http":
		return get(ctx, p.URL)
	case "tcp":
		return nil, "", stream(ctx, u.Host, p.payload())
	case "udp":
		return nil, "", datagram(ctx, u.Host, p.payload())
	case "icmp":
		return nil, "", ping(ctx, u.Hostname(), p.payload())
	case "dns4", "dns6":
		addrs, err := new(net.Resolver).LookupNetIP(ctx, "ip"+u.Scheme[len("dns"):], u.Host)
		for _, a := range addrs {
			by = append(by, a.Unmap().String())
		}
		return by, "", err
	}
	return nil, "", fmt.Errorf("%s: want a URL that begins with http, tcp, udp, icmp, dns4 or dns6", p.URL)
}

// words are what happened, as a tester says it.
func (p Probe) words(err error) string {
	var lookup *net.DNSError
	timeout := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case errors.As(err, &lookup):
		return lookup.Error()
	case timeout:
		return fmt.Sprintf("no answer within %s", p.Timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "host unreachable (an ICMP error came)"
	case errors.Is(err, syscall.EACCES):
		return "administratively prohibited (an ICMP error came)"
	}
	return err.Error()
}

// get asks a server of package echo for its name and the client's address.
func get(ctx context.Context, target string) (by []string, client string, err error) {
	text, err := echo.Call(ctx, target)
	if err != nil {
		return nil, "", err
	}
	for line := range strings.Lines(text) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch value = strings.TrimSpace(value); word {
		case "server":
			by = append(by, value)
		case "client":
			if from, err := netip.ParseAddrPort(value); err == nil {
				client = from.Addr().Unmap().String()
			}
		}
	}
	return by, client, nil
}

func dial(ctx context.Context, network, addr string) (net.Conn, func(), error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return c, func() { stop(); _ = c.Close() }, nil
}

// stream sends bytes and wants them back. It reads while it sends: neither end can hold all.
func stream(ctx context.Context, addr string, sent []byte) error {
	c, done, err := dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer done()
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	if n, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, len(sent), err)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("other bytes came back than were sent")
	}
	return <-wrote
}

func datagram(ctx context.Context, addr string, sent []byte) error {
	c, done, err := dial(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer done()
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent)+1)
	n, err := c.Read(got)
	if err == nil && !bytes.Equal(got[:n], sent) {
		return errors.New("other bytes came back than were sent")
	}
	return err
}

// payload is what the probe sends.
func (p Probe) payload() []byte {
	b := make([]byte, cmp.Or(p.Size, defaultSize))
	for i := range b {
		if p.Text == "" {
			b[i] = byte(i*7 + i>>8)
		} else {
			b[i] = p.Text[i%len(p.Text)]
		}
	}
	return b
}
