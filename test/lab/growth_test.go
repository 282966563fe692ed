package labtest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestGrowth: the tables of conntrack and NAT entries grow for thousands of connections, all of which survive that and
// a restart of the agent; they do not grow for a flood of SYNs with forged sources.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│   a1    │  │   a2    │   world→NodePort of node1→a2 (nat_entries), a1→world masqueraded (flows)
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world: a server; floods, too
func TestGrowth(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("ipv%d", family), func(t *testing.T) {
			t.Parallel()
			values := perPacket()
			values["bpf.mapDynamicSizeRatio"] = 0.000001
			g := &growing{flooded: &flooded{policed: upLabelled(t, setup{pods: []string{"a"}, values: values})}}
			g.apply("service", g.outsideYAML("flooded", floodService, "", "a2"))
			for _, prefix := range []netip.Prefix{nowhere(4), nowhere(6)} {
				g.command("ip", "-n", g.World().NetnsName(), "route", "add", "blackhole", prefix.String())
			}
			g.run(t, family)
		})
	}
}

// What the tables have room for at first, how many connections there are, and what they need: two steps of growth.
const (
	growthFrom  = 2048
	growthConns = 2000
	growthTo    = 8192
)

// growing is a cluster with small tables.
type growing struct{ *flooded }

func (g *growing) run(t *testing.T, family int) {
	world, a1, a2 := g.end("world"), g.end("a1"), g.end("a2")
	g.addLane("world→node port", family, world, at(nodeAddr(1, family), 30000+floodService), a2, 8080)
	g.addLane("a1→world", family, a1, at(world.addr(family), floodPort), world, floodPort)
	g.sizes(t, growthFrom, growthFrom)
	g.withstandsSYNs(t, family)
	connections := make([]connection, 0, len(g.lanes)*growthConns)
	for _, l := range g.lanes {
		eventually(t, "the first connection of "+l.String(), 10*time.Second, func() error {
			c, err := l.connection(t)
			if err == nil {
				connections = append(connections, c)
			}
			return err
		})
	}
	for i := 1; i < growthConns; i++ {
		for _, l := range g.lanes {
			c, err := l.connection(t)
			for end := time.Now().Add(patience(30 * time.Second)); err != nil && time.Now().Before(end); {
				c, err = l.connection(t) // the table is full until it has grown
			}
			if err != nil {
				t.Fatalf("connection %d of %s: %v", i, l, err)
			}
			connections = append(connections, c)
		}
	}
	g.sizes(t, growthTo, growthTo)
	survive(t, "growth", connections)
	g.saysWhy(t)
	check(t, g.Node("node1").RestartAgent(t.Context()))
	g.sizes(t, growthTo, growthTo)
	survive(t, "a restart", connections)
}

// withstandsSYNs floods node1 for longer than the agent takes to count entries.
func (g *growing) withstandsSYNs(t *testing.T, family int) {
	t.Helper()
	const packets, over = 12000, 3 * time.Second
	send := g.spoofedSYNs(family)
	most := 0.0
	for range 3 {
		check(t, g.end("world").Do(func() error {
			_, err := paced(packets/3, patience(over)/3, send)
			return err
		}))
		entries, err := g.conntrack("entries", "nat_entries")
		check(t, err)
		most = max(most, entries)
	}
	if most < growthFrom/2 {
		t.Errorf("the flood made %.0f entries, which shows nothing", most)
	}
	time.Sleep(patience(2 * time.Second))
	g.sizes(t, growthFrom, growthFrom)
}

// connection opens one, and has both ends talk.
func (l *lane) connection(t *testing.T) (connection, error) {
	client, err := l.from.dialTCP(t.Context(), netip.AddrPort{}, l.to)
	if err != nil {
		return connection{}, err
	}
	t.Cleanup(func() { client.Close() })
	check(t, l.tcp.SetDeadline(soon()))
	server, err := l.tcp.AcceptTCP()
	if err != nil {
		return connection{}, err
	}
	t.Cleanup(func() { server.Close() })
	c := connection{name: fmt.Sprintf("%s, %s", l, client.LocalAddr()), client: client, server: server}
	return c, c.exchange(patience(2 * time.Second))
}

// survive has both ends of all connections talk.
func survive(t *testing.T, what string, connections []connection) {
	t.Helper()
	broken := 0
	for _, c := range connections {
		if err := c.exchange(patience(3 * time.Second)); err != nil {
			if broken++; broken <= 5 {
				t.Errorf("after %s: %s: %v", what, c.name, err)
			}
		}
	}
	if broken > 0 {
		t.Fatalf("%s broke %d of %d connections", what, broken, len(connections))
	}
}

// conntrack is a metric of one of node1's conntrack tables.
func (g *growing) conntrack(what, table string) (float64, error) {
	return g.metric(fmt.Sprintf("myelin_conntrack_%s{table=%q}", what, table))
}

// metric is one of node1's, with its labels.
func (g *growing) metric(name string) (n float64, err error) {
	_, text, err := g.nodeGet("node1", "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(value, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// sizes waits until the tables of node1 have these sizes, which are below the limit.
func (g *growing) sizes(t *testing.T, flows, entries float64) {
	t.Helper()
	for table, want := range map[string]float64{"flows": flows, "nat_entries": entries} {
		eventually(t, fmt.Sprintf("%s has room for %.0f entries", table, want), 30*time.Second, func() error {
			got, err := g.conntrack("max_entries", table)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("it has room for %.0f", got)
			}
			limit, err := g.conntrack("limit_entries", table)
			if err == nil && limit <= got {
				return fmt.Errorf("its limit is %.0f", limit)
			}
			return err
		})
	}
}

// saysWhy has status and log name the growth as the reason of reloads.
func (g *growing) saysWhy(t *testing.T) {
	t.Helper()
	text, err := g.Node("node1").Exec(t.Context(), "myelin", "status", "--verbose")
	check(t, err)
	words := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{"it grows", "of 8192 entries (grows to"} {
		if !strings.Contains(words, want) {
			t.Errorf("status does not have %q:\n%s", want, text)
		}
	}
}
