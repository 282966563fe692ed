package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"
)

// movingServer answers as a nameServer whose names have addresses from another number on, or one address for all.
type movingServer struct {
	first atomic.Int64
	all   atomic.Pointer[netip.Addr]
}

// ServeDNS implements dns.Handler.
func (s *movingServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	m := new(dns.Msg).SetReply(query)
	q := query.Question[0]
	var n int
	_, _ = fmt.Sscanf(q.Name, "%d.", &n) // another name is number 0
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
	family := 4
	if q.Qtype == dns.TypeAAAA {
		family = 6
	}
	a := numbered(family, n+int(s.first.Load()))
	if all := s.all.Load(); all != nil {
		a = *all
	}
	if family == 4 {
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: a.AsSlice()}}
	} else {
		m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: a.AsSlice()}}
	}
	_ = w.WriteMsg(m) // the client asks again
}

// TestDNSCache has a pod ask for the same name again and again: its messages pass without the proxy, until the name has
// another address, which is allowed at once, or the policy changes. A name that has the address of a pod opens no way
// to it.
//
//	┌─ node1 ──────────┐  ┌─ node2 ─┐
//	│ backend   other  │  │   api   │
//	└────┬────────┬────┘  └────┬────┘
//	═════╧════════╧════════════╧═════ world: resolver
func TestDNSCache(t *testing.T) {
	c := up(t, setup{yaml: l7Pods(), values: map[string]any{"hubble.enabled": false}})
	c.apply("names", awsOnly)
	c.apply("queries", askAWS)
	s := &movingServer{}
	c.serveZone(s)
	c.acceptAll(443)
	c.serveHTTP(c.end("api"), 80)
	c.refusesQuery("1.example.com.", "the policy is enforced")
	for _, f := range []int{4, 6} {
		s.first.Store(0)
		s.all.Store(nil)
		c.resolvesTo(f, numbered(f, 1), "at first")
		c.passes(f, numbered(f, 1))
		s.first.Store(1000)
		c.resolvesTo(f, numbered(f, 1001), "with another address")
		c.passes(f, numbered(f, 1001))
		check(t, c.Node("node1").KillAgent(t.Context()))
		c.passes(f, numbered(f, 1001))
		check(t, c.Node("node1").StartAgent(t.Context(), nil))
		c.passes(f, numbered(f, 1001))
		c.resolvesToPod(f, s)
	}
	contains(t, "status", c.mustCLI("node1", "status"), "DNS question", " answered without it")
	c.apply("queries", strings.ReplaceAll(askAWS, "*.amazonaws.com", "*.example.com"))
	c.refusesQuery("1.amazonaws.com.", "the policy refuses what it has allowed")
}

// refusesQuery waits until a query is refused. Before, it may be dropped: while only the other policy is enforced.
func (c *cluster) refusesQuery(name, what string) {
	c.t.Helper()
	eventually(c.t, what, 10*time.Second, func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience(time.Second))
		defer cancel()
		_, code, err := resolve(ctx, c.end("backend"), c.end("world").addr(4), name)
		if err != nil || code != dnsmessage.RCodeRefused {
			return fmt.Errorf("got %s, %w", code, err)
		}
		return nil
	})
}

// resolvesTo resolves name 1 and connects to its address.
func (c *cluster) resolvesTo(f int, want netip.Addr, when string) {
	c.t.Helper()
	got := c.resolvesNumber(f, want, when)
	if !connects(c.t.Context(), c.end("backend"), at(got, 443)) {
		c.t.Errorf("%s: %s is not reached", when, got)
	}
}

// resolvesNumber resolves name 1.
func (c *cluster) resolvesNumber(f int, want netip.Addr, when string) netip.Addr {
	c.t.Helper()
	got, err := resolveNumber(c.t.Context(), c.end("backend"), c.end("world").addr(f), 1)
	if err != nil || got != want {
		c.t.Errorf("%s: the name is %s, %v; want %s", when, got, err, want)
	}
	return got
}

// passes resolves name 1 until a query passes without the proxy: not the first one after epochs have changed.
func (c *cluster) passes(f int, want netip.Addr) {
	c.t.Helper()
	eventually(c.t, "a query passes without the proxy", 10*time.Second, func() error {
		before := c.proxy("node1").Passed
		c.resolvesTo(f, want, "by the datapath")
		if c.proxy("node1").Passed == before {
			return fmt.Errorf("IPv%d: none has", f)
		}
		return nil
	})
}

// resolvesToPod has the name server, an attacker's, say that a name has the address of a pod.
func (c *cluster) resolvesToPod(f int, s *movingServer) {
	c.t.Helper()
	ctx, api := c.t.Context(), c.end("api").addr(f)
	s.all.Store(&api)
	for _, when := range []string{"at first", "again"} {
		got, err := resolveNumber(ctx, c.end("backend"), c.end("world").addr(f), 1)
		if err != nil || got != api {
			c.t.Errorf("%s: the name is %s, %v; want %s", when, got, err, api)
		}
		if connects(ctx, c.end("backend"), at(api, 80)) {
			c.t.Errorf("%s: a name opens a way to a pod", when)
		}
	}
	if !connects(ctx, c.end("other"), at(api, 80)) {
		c.t.Errorf("%s is not reached by a pod without policies", api)
	}
}
