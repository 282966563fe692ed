package labtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
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
			values["myelin.mapGrowthRatio"] = ratioFor(t, growthLimit)
			upGrowing(t, family, values).run(t, family)
		})
	}
}

// What the tables have room for at first, how many connections there are, what these need, and what the tables may grow
// to.
const (
	growthFrom  = 2048
	growthConns = 2000
	growthTo    = 8192
	growthLimit = 24576
)

// ratioFor is the myelin.mapGrowthRatio with which tables grow to so many entries.
func ratioFor(t *testing.T, entries int) float64 {
	t.Helper()
	var info unix.Sysinfo_t
	check(t, unix.Sysinfo(&info))
	each, _ := bpf.EntryBytes(true)
	return float64(entries) * float64(each) / (float64(info.Totalram) * float64(info.Unit))
}

// growing is a cluster whose tables grow.
type growing struct{ *flooded }

func upGrowing(t *testing.T, family int, values map[string]any) *growing {
	g := &growing{flooded: &flooded{policed: upLabelled(t, setup{pods: []string{"a"}, values: values})}}
	g.apply("service", g.outsideYAML("flooded", floodService, "", "a2"))
	for _, prefix := range []netip.Prefix{nowhere(4), nowhere(6)} {
		g.command("ip", "-n", g.World().NetnsName(), "route", "add", "blackhole", prefix.String())
	}
	world, a1, a2 := g.end("world"), g.end("a1"), g.end("a2")
	g.addLane("world→node port", family, world, at(nodeAddr(1, family), 30000+floodService), a2, 8080)
	g.addLane("a1→world", family, a1, at(world.addr(family), floodPort), world, floodPort)
	return g
}

func (g *growing) run(t *testing.T, family int) {
	g.sizes(t, growthFrom, growthFrom, "max")
	g.withstandsSYNs(t, family)
	connections := g.connections(t, growthConns)
	g.sizes(t, growthTo, growthTo, "min")
	survive(t, "growth", connections)
	g.saysWhy(t)
	check(t, g.Node("node1").RestartAgent(t.Context()))
	g.sizes(t, growthTo, growthTo, "max")
	survive(t, "a restart", connections)
}

// connections opens n in each lane.
func (g *growing) connections(t *testing.T, n int) []connection {
	t.Helper()
	list := make([]connection, 0, len(g.lanes)*n)
	for i := range n {
		for _, l := range g.lanes {
			c, err := l.connection(t)
			for end := time.Now().Add(patience(30 * time.Second)); err != nil && time.Now().Before(end); {
				c, err = l.connection(t) // the Service is not there yet, or the table is full until it has grown
			}
			if err != nil {
				t.Fatalf("connection %d of %s: %v", i, l, err)
			}
			list = append(list, c)
		}
	}
	return list
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
	g.sizes(t, growthFrom, growthFrom, "max")
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

// sizes waits until the tables of node1 have these sizes, exactly ("max") or at least ("min"), below the limit.
func (g *growing) sizes(t *testing.T, flows, entries float64, bound string) {
	t.Helper()
	for table, want := range map[string]float64{"flows": flows, "nat_entries": entries} {
		eventually(t, fmt.Sprintf("%s has room for %.0f entries", table, want), 30*time.Second, func() error {
			got, err := g.conntrack("max_entries", table)
			if err != nil {
				return err
			}
			if got < want || bound == "max" && got > want {
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
	for _, want := range []string{"it grows", "entries (grows to", "may grow"} {
		if !strings.Contains(words, want) {
			t.Errorf("status does not have %q:\n%s", want, text)
		}
	}
}

// TestGrowthBurst: 50,000 new flows within a second, for which the tables of an idle node have no room, break no
// connection, and new connections succeed after them.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1 burst│  │   a2    │   world→NodePort of node1→a2, a1→world masqueraded
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world: a server; SYNs with forged sources
func TestGrowthBurst(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("ipv%d", family), func(t *testing.T) {
			g := upGrowing(t, family, perPacket())
			connections := g.connections(t, 100)
			g.burst(t, "UDP flows of a1", "a1", g.podFlows(family), connections)
			g.burst(t, "SYNs to the node port", "world", g.spoofedSYNs(family), connections)
		})
	}
}

// burst sends, and looks at the connections.
func (g *growing) burst(t *testing.T, name, from string, send sending, connections []connection) {
	t.Helper()
	const flows = 50_000
	before := g.dropped()
	check(t, g.end(from).Do(func() error {
		sent, err := paced(flows, time.Second, send)
		t.Logf("%s: %d sent", name, sent)
		if err == nil && sent < flows/4 {
			t.Errorf("%s: only %d were sent, which shows nothing", name, sent)
		}
		return err
	}))
	survive(t, name, connections)
	for _, l := range g.lanes {
		eventually(t, "a connection of "+l.String()+" after "+name, 10*time.Second, func() error {
			_, err := l.connection(t)
			return err
		})
	}
	t.Logf("%s: %.0f packets were dropped", name, g.dropped()-before)
	check(t, g.Node("node1").Err())
	survive(t, name+", and a while", connections)
}

// dropped is the number of packets that node1 has dropped for want of room in a table of flows.
func (g *growing) dropped() (packets float64) {
	for _, line := range g.drops("node1") {
		if !strings.Contains(line, `"flow_limit"`) && !strings.Contains(line, `"map_full"`) {
			continue
		}
		var n float64
		fields := strings.Fields(line)
		_, err := fmt.Sscan(fields[len(fields)-1], &n)
		check(g.t, err)
		packets += n
	}
	return packets
}

// TestGrowthServices: more Services than an idle node has room for are served after a few seconds, and a connection to
// one of those before goes on.
//
//	┌─ node1 ─┐
//	│ a1   b1 │   a1→Service→b1
//	└────┬────┘
//	═════╧═════
func TestGrowthServices(t *testing.T) {
	t.Parallel()
	g := upGrowing(t, 4, map[string]any{"kubeProxyReplacement": true})
	connections := g.connections(t, 1)
	g.frontends(t, 0, 4096)
	var many strings.Builder
	for i := range 50 {
		fmt.Fprintf(&many, "---\napiVersion: v1\nkind: Service\nmetadata: {name: many%d, namespace: default}\n"+
			"spec:\n  clusterIP: 10.96.77.%d\n  clusterIPs: [10.96.77.%d]\n  ports:\n", i, 1+i, 1+i)
		for port := range 100 {
			fmt.Fprintf(&many, "  - {name: p%d, port: %d, protocol: TCP}\n", port, 1000+port)
		}
	}
	g.apply("many", many.String())
	g.frontends(t, 5000, 16384)
	survive(t, "growth", connections)
	list := ""
	eventually(t, "map list", 10*time.Second, func() (err error) {
		list, err = g.cli("node1", "map", "list")
		return err
	})
	contains(t, "map list", list, "65536 (bpf.lbMapMax)")
}

// frontends waits until the map of frontends of node1 has so many rows at least, and this size.
func (g *growing) frontends(t *testing.T, rows, size int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d frontends with room for %d", rows, size), 30*time.Second, func() error {
		var list []bpf.Usage
		out, err := g.cli("node1", "map", "list", "-o", "json") // the API is closed during a reload
		if err == nil {
			err = json.Unmarshal([]byte(out), &list)
		}
		for _, u := range list {
			if u.Name == "frontends" && (u.Entries < rows || u.Max != size || u.Start != 4096) {
				return fmt.Errorf("%d entries of %d, %d at first", u.Entries, u.Max, u.Start)
			}
		}
		return err
	})
}

// TestLocked: the maps of an idle node that replaces kube-proxy lock no more than 24 MB.
//
//	┌─ node1 ─┐
//	│   a1    │
//	└────┬────┘
//	═════╧═════
func TestLocked(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{"a"}, values: map[string]any{"kubeProxyReplacement": true}})
	const few, perCPU = 4, 0.6 // CPUs; MB of arrays per CPU
	allowed := 24 + perCPU*float64(max(0, runtime.NumCPU()-few))
	locked := c.locked("node1")
	if locked > allowed {
		t.Errorf("%.2f MB are locked, which should be %.2f at most", locked, allowed)
	}
	record(t, result{"maps/locked_mb", locked, "MB"})
}
