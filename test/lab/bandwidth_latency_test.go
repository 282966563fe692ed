package labtest

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"testing"
	"time"
)

// roundTrips are so many between pods, and how much faster they must be than with HTB: the clock of an emulator in real
// time has the load of its machine in it.
func roundTrips() (n int, faster time.Duration) {
	if os.Getenv(envRecord) == "1" {
		return 500, 5
	}
	return 200, 1
}

// TestBandwidthLatency compares round trips of a pod beside one that sends as much as its limit allows with what they
// take when the qdisc HTB limits as much: with one class for the device, which both pods share, and with a class for
// each, which is measured only.
//
//	┌─ node1 ─────────────────────┐  ┌─ node2 ─┐
//	│ a1 (limit)  b1 (round trips)│  │ a2  b2  │
//	└──────┬──────────────────────┘  └────┬────┘
//	═══════╧══════════════════════════════╧════
func TestBandwidthLatency(t *testing.T) {
	if why := noFq() + noType("type veth && tc qdisc add dev probe0 root htb"); why != "" {
		t.Skip(why)
	}
	m := modeNamed("native")
	m.values = maps.Clone(m.values)
	m.values["bandwidthManager.enabled"] = true
	c := up(t, setup{mode: m})
	const limit = "20M"
	var waits, htb, classes [2]time.Duration
	c.limit("a1", map[string]string{"egress": limit})
	for i, f := range c.stack.families {
		waits[i] = c.slowRoundTrip(f)
	}
	c.limit("a1", nil)
	c.tc("qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1")
	c.tc("class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", limit+"bit")
	for i, f := range c.stack.families {
		htb[i] = c.slowRoundTrip(f)
	}
	c.tc("class", "add", "dev", "eth0", "parent", "1:", "classid", "1:2", "htb", "rate", "10Gbit")
	for _, f := range c.stack.families {
		protocol, match := "ip", "ip"
		if f == 6 {
			protocol, match = "ipv6", "ip6"
		}
		c.tc("filter", "add", "dev", "eth0", "parent", "1:", "protocol", protocol, "prio", fmt.Sprint(f), "u32",
			"match", match, "src", c.end("b1").addr(f).String(), "flowid", "1:2")
	}
	for i, f := range c.stack.families {
		classes[i] = c.slowRoundTrip(f)
	}
	_, faster := roundTrips()
	for i, f := range c.stack.families {
		t.Logf("IPv%d: p99 %s; with HTB %s, with a class for each pod %s", f, waits[i], htb[i], classes[i])
		if faster*waits[i] > htb[i] {
			t.Errorf("IPv%d: p99 is %s, with HTB %s, which is less than %d times as much", f, waits[i], htb[i], faster)
		}
	}
	record(t, result{"bandwidth/p99_vs_htb", worstRatio(waits, htb), "ratio"},
		result{"bandwidth/p99_vs_htb_classes", worstRatio(waits, classes), "ratio"})
}

func worstRatio(of, by [2]time.Duration) (worst float64) {
	for i := range of {
		worst = max(worst, of[i].Seconds()/by[i].Seconds())
	}
	return worst
}

// tc configures node1.
func (c *cluster) tc(args ...string) {
	c.t.Helper()
	if _, err := c.Node("node1").Exec(c.t.Context(), append([]string{"tc"}, args...)...); err != nil {
		c.t.Fatal(err)
	}
}

// slowRoundTrip is the 99th percentile of round trips between b1 and b2 while a1 sends to a2.
func (c *cluster) slowRoundTrip(family int) time.Duration {
	c.t.Helper()
	busy := c.loadTCP("a1", "a2", family, rateStreams)
	defer busy.stop()
	rate := rates(time.Second, busy)[0]
	a, b := c.end("b1"), c.end("b2")
	client, server, err := connect(c.t.Context(), a, b, at(a.addr(family), 0), at(b.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	go func() { _, _ = io.Copy(server, server) }()
	var took []time.Duration
	n, _ := roundTrips()
	for range n {
		one, err := roundTrip(client)
		if err != nil {
			c.t.Fatal(err)
		}
		took = append(took, one)
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	c.t.Logf("IPv%d beside %.1f Mbit/s: median %s, p99 %s", family, rate/1e6, took[len(took)/2], p99)
	return p99
}

func roundTrip(conn net.Conn) (time.Duration, error) {
	one := []byte{1}
	start := time.Now()
	if _, err := conn.Write(one); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(conn, one)
	return time.Since(start), err
}
