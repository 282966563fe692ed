package labtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// awsOnly is the policy by DNS name of seed document 004, as printed there; askWorld lets the pod ask resolvers.
const (
	awsOnly = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata:
  name: allow-aws-only
spec:
  endpointSelector:
    matchLabels:
      app: backend
  egress:
  - toFQDNs:
    - matchPattern: "*.amazonaws.com"
    - matchPattern: "*.eks.amazonaws.com"
`
	askWorld = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: ask-world}
spec:
  endpointSelector: {matchLabels: {app: backend}}
  egress:
  - toEntities: [world]
    toPorts: [{ports: [{port: "53"}]}]
`
	askAWS = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: ask-aws}
spec:
  endpointSelector: {matchLabels: {app: backend}}
  egress:
  - toEntities: [world]
    toPorts: [{ports: [{port: "53"}], rules: {dns: [{matchPattern: "*.amazonaws.com"}]}}]
`
)

// zone answers queries with the addresses of names: the part of the name before the first dot is a number, that of the
// address in the list of its family.
type zone struct{ addrs []netip.Addr }

func (z zone) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil, fmt.Errorf("not a query: %w", err)
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	var i int
	if n, _ := fmt.Sscanf(q.Name.String(), "%d.", &i); n != 1 {
		m.RCode = dnsmessage.RCodeNameError
		return m.Pack()
	}
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}
	var family []netip.Addr
	for _, a := range z.addrs {
		if a.Is4() == (q.Type == dnsmessage.TypeA) {
			family = append(family, a)
		}
	}
	switch a := family[i%len(family)]; q.Type {
	case dnsmessage.TypeA:
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
	case dnsmessage.TypeAAAA:
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
	}
	return m.Pack()
}

// serveDNS serves the zone by UDP at all addresses of an end.
func (c *cluster) serveDNS(e end) {
	c.t.Helper()
	z := zone{e.addrs}
	for _, a := range e.addrs {
		conn, err := e.listenUDP(c.t.Context(), at(a, 53))
		check(c.t, err)
		c.t.Cleanup(func() { conn.Close() })
		go func() {
			buffer := make([]byte, 1500)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buffer)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if out, bad := z.answer(buffer[:n]); err == nil && bad == nil {
					_, _ = conn.WriteToUDPAddrPort(out, from) // the client asks again
				}
			}
		}()
	}
}

// resolve asks for a name once, and returns the address or the response code. It waits until ctx ends, for ten seconds
// at most.
func resolve(ctx context.Context, from end, server netip.Addr, name string) (a netip.Addr, code dnsmessage.RCode,
	err error,
) {
	kind := dnsmessage.TypeA
	if server.Is6() {
		kind = dnsmessage.TypeAAAA
	}
	parsed, err := dnsmessage.NewName(name)
	if err != nil {
		return a, 0, err
	}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: parsed, Type: kind, Class: dnsmessage.ClassINET}}}
	packed, err := query.Pack()
	if err != nil {
		return a, 0, err
	}
	conn, err := from.dialUDP(ctx, netip.AddrPort{}, at(server, 53))
	if err != nil {
		return a, 0, err
	}
	defer conn.Close()
	deadline := soon()
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return a, 0, err
	}
	if _, err := conn.Write(packed); err != nil {
		return a, 0, err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	if err != nil {
		return a, 0, err
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(buffer[:n]); err != nil || answer.ID != query.ID {
		return a, 0, fmt.Errorf("answer %v: %w", answer.Header, err)
	}
	for _, r := range answer.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			a = netip.AddrFrom4(body.A)
		case *dnsmessage.AAAAResource:
			a = netip.AddrFrom16(body.AAAA)
		}
	}
	return a, answer.RCode, nil
}

// connects reports whether a pod gets a connection within a second.
func connects(ctx context.Context, from end, to netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, patience(time.Second))
	defer cancel()
	conn, err := from.dialTCP(ctx, netip.AddrPort{}, to)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// worldAddrs are n addresses of each family.
func worldAddrs(n int) (list []netip.Addr) {
	for i := 1; i <= n; i++ {
		list = append(list, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8:64::%x", i)))
	}
	return list
}

// TestFQDN is the policy by DNS name of seed document 004: an address is allowed once a name that the policy selects
// was resolved to it, from the first packet on, also while no agent runs, and by no other name.
//
//	┌─ node1 ──┐
//	│ backend  │
//	└────┬─────┘
//	═════╧═════════════ world: resolver, 198.51.100.0/24, 2001:db8:64::/64
func TestFQDN(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"native", "legacy", "vxlan"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(m), outside: worldAddrs(40),
				yaml: strings.Join([]string{l7Pods(), awsOnly, askWorld}, "---\n")})
			world := c.end("world")
			c.serveDNS(world)
			c.serveHTTP(world, 443)
			c.checkNames(0, "at first")
			check(t, c.Node("node1").KillAgent(t.Context()))
			c.checkNames(10, "without an agent")
			check(t, c.Node("node1").StartAgent(t.Context(), nil))
			c.checkNames(20, "with a new agent")
			names := c.mustCLI("node1", "fqdn", "list")
			contains(t, "fqdn list", names, "10.amazonaws.com", "21.eks.amazonaws.com", "default/backend",
				"CiliumNetworkPolicy default/allow-aws-only")
		})
	}
}

// checkNames resolves names from number first on, and connects to their addresses.
func (c *cluster) checkNames(first int, when string) {
	c.t.Helper()
	ctx, pod, world := c.t.Context(), c.end("backend"), c.end("world")
	for _, f := range []int{4, 6} {
		server := world.addr(f)
		for i := first; i < first+3; i++ {
			name := fmt.Sprintf("%d.%samazonaws.com.", i, []string{"", "eks."}[i%2])
			want, _, err := resolve(ctx, c.end("other"), server, name) // a pod that no policy selects
			if err != nil {
				c.t.Fatalf("%s: resolve %s: %v", when, name, err)
			}
			if i == first && connects(ctx, pod, at(want, 443)) {
				c.t.Errorf("%s: %s is reached before its name is resolved", when, want)
			}
			got, _, err := resolve(ctx, pod, server, name)
			if err != nil || got != want {
				c.t.Errorf("%s: %s is %s, %v; want %s", when, name, got, err, want)
			}
			if !connects(ctx, pod, at(got, 443)) {
				c.t.Errorf("%s: %s (%s) is not reached", when, name, got)
			}
		}
		evil := fmt.Sprintf("%d.example.com.", first+5)
		got, _, err := resolve(ctx, pod, server, evil)
		if err != nil || !got.IsValid() {
			c.t.Errorf("%s: resolve %s: %s, %v", when, evil, got, err)
		}
		if connects(ctx, pod, at(got, 443)) {
			c.t.Errorf("%s: %s (%s) is reached", when, evil, got)
		}
	}
}

// TestDNSRules: queries that no rule allows are refused by the proxy.
//
//	┌─ node1 ──┐
//	│ backend  │
//	└────┬─────┘
//	═════╧═════════════ world: resolver
func TestDNSRules(t *testing.T) {
	t.Parallel()
	c := up(t, setup{outside: worldAddrs(4), yaml: strings.Join([]string{l7Pods(), awsOnly, askAWS}, "---\n")})
	world := c.end("world")
	c.serveDNS(world)
	c.serveHTTP(world, 443)
	for _, f := range []int{4, 6} {
		for name, want := range map[string]dnsmessage.RCode{"1.amazonaws.com.": dnsmessage.RCodeSuccess,
			"1.example.com.": dnsmessage.RCodeRefused, "1.sub.amazonaws.com.": dnsmessage.RCodeRefused} {
			_, code, err := resolve(t.Context(), c.end("backend"), world.addr(f), name)
			if err != nil || code != want {
				t.Errorf("%s by %s: %s, %v; want %s", name, world.addr(f), code, err, want)
			}
		}
	}
	eventually(t, "flows of the queries", 10*time.Second, func() error { // the agent reads the proxy's records
		flows := c.mustCLI("node1", "observe", "--last", "50", "--type", "l7")
		for _, want := range []string{"dns-request proxy DROPPED (DNS Query 1.example.com.)",
			"(DNS Query 1.amazonaws.com.)", "DNS Answer 198.51.100.2 (1.amazonaws.com.)"} {
			if !strings.Contains(flows, want) {
				return fmt.Errorf("%q is missing in:\n%s", want, flows)
			}
		}
		return nil
	})
}
