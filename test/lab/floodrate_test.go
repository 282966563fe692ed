package labtest

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// TestNewFlowRate: above myelin.newFlowRate, connections by DSR and Maglev work without NAT entries, several packets
// each; by default the rate follows the room in the table. Status and metrics show it.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│         │  │ a2   b2 │   world→NodePort of node1→a2 or b2
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world
func TestNewFlowRate(t *testing.T) {
	t.Parallel()
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("stateless/ipv%d", family), func(t *testing.T) {
			t.Parallel()
			stateless(t, family)
		})
		t.Run(fmt.Sprintf("automatic/ipv%d", family), func(t *testing.T) {
			t.Parallel()
			upRated(t, nil).followsRoom(t, family)
		})
	}
}

// upRated is a cluster with a Service of two backends.
func upRated(t *testing.T, more map[string]any) *growing {
	values := perPacket()
	maps.Copy(values, more)
	g := &growing{flooded: &flooded{policed: upLabelled(t, setup{pods: []string{"a", "b"}, values: values})}}
	g.apply("service", g.outsideYAML("flooded", floodService, "", "a2", "b2"))
	for _, prefix := range []netip.Prefix{nowhere(4), nowhere(6)} {
		g.command("ip", "-n", g.World().NetnsName(), "route", "add", "blackhole", prefix.String())
	}
	return g
}

func stateless(t *testing.T, family int) {
	const rate, connections, rounds = 5, 200, 3
	g := upRated(t, map[string]any{"loadBalancer.mode": "dsr", "loadBalancer.dsrDispatch": "ipip",
		"loadBalancer.algorithm": "maglev", "myelin.newFlowRate": rate})
	for _, pod := range []string{"a2", "b2"} {
		server := g.end(pod)
		l, err := server.listenTCP(t.Context(), at(server.addr(family), 8080))
		check(t, err)
		t.Cleanup(func() { l.Close() })
		go echoTCP(l)
	}
	world, to := g.end("world"), at(nodeAddr(1, family), 30000+floodService)
	var open []net.Conn
	dial := func() error {
		c, err := world.dialTCP(t.Context(), netip.AddrPort{}, to)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			open = append(open, c)
		}
		return err
	}
	eventually(t, "the Service answers", 10*time.Second, dial)
	for range connections {
		check(t, dial())
	}
	for round := range rounds {
		for i, c := range open {
			if err := askTCP(c, uint64(i)); err != nil {
				t.Fatalf("round %d: connection %d of %d: %v", round, i, len(open), err)
			}
		}
	}
	without, err := g.metric("myelin_stateless_packets_total")
	check(t, err)
	if without < connections {
		t.Errorf("%.0f packets had no entry, of %d connections in a burst", without, connections)
	}
	if got, shown := g.rate(t); got != rate || shown != rate {
		t.Errorf("the rate is %.0f by metrics and %.0f by status, want %d", got, shown, rate)
	}
}

// followsRoom floods node1 with SYNs, the backends' node being reached by SNAT.
func (g *growing) followsRoom(t *testing.T, family int) {
	t.Helper()
	const packets, over = 20000, 2 * time.Second
	idle, shown := g.rate(t)
	if idle < 2000 || idle != shown {
		t.Fatalf("the rate is %.0f by metrics and %.0f by status", idle, shown)
	}
	send := g.spoofedSYNs(family)
	check(t, g.end("world").Do(func() error {
		_, err := paced(packets, patience(over), send)
		return err
	}))
	eventually(t, "the rate falls", 10*time.Second, func() error {
		entries, err := g.conntrack("entries", "nat_entries")
		if err != nil {
			return err
		}
		room, err := g.conntrack("max_entries", "nat_entries")
		if err != nil {
			return err
		}
		// Entries may come and go between the two reads.
		got, _ := g.rate(t)
		if want := idle * (room - entries) / room; entries < room/10 || got > 1.05*want || got < 0.95*want {
			return fmt.Errorf("%.0f with %.0f of %.0f entries in use, was %.0f", got, entries, room, idle)
		}
		return nil
	})
	check(t, g.end("world").Do(func() error { // until entries that nothing proves make room
		_, err := paced(packets, patience(over), func(i int) error { return send(packets + i) })
		return err
	}))
	eventually(t, "the rate recovers", 30*time.Second, func() error {
		if got, _ := g.rate(t); got < 0.9*idle {
			return fmt.Errorf("it is %.0f, and was %.0f", got, idle)
		}
		return nil
	})
}

// rate is the limit of new flows by metrics and status of node1.
func (g *growing) rate(t *testing.T) (metric, shown float64) {
	t.Helper()
	metric, err := g.metric("myelin_new_flow_rate")
	check(t, err)
	text, err := g.Node("node1").Exec(t.Context(), "myelin", "status", "--verbose")
	check(t, err)
	m := regexp.MustCompile(`(\d+)\s+new\s+flows\s+a\s+second`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("status shows no rate:\n%s", text)
	}
	shown, err = strconv.ParseFloat(m[1], 64)
	check(t, err)
	return metric, shown
}
