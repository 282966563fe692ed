package labtest

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// roundTrips are so many between pods, and how much faster they must be than with HTB: the clock of an emulator in real
// time has the load of its machine in it.
func roundTrips() (n int, faster time.Duration) {
	if os.Getenv(envRecord) == "1" {
		return 500, 5
	}
	return 200, 1
}

// own is the number of round trips of a pod that itself sends as much as its limit allows. With large packets, each one
// takes a second.
const own = 10

// TestBandwidthLatency compares round trips of a pod beside one that sends as much as its limit allows with what they
// take when the qdisc HTB limits as much: with one class for the device, which both pods share, and with a class for
// each, which is measured only. It also compares round trips of the pod itself with those when its packets are as large
// as without a limit.
//
//	┌─ node1 ─────────────────────┐  ┌─ node2 ─┐
//	│ a1 (limit)  b1 (round trips)│  │ a2  b2  │
//	└──────┬──────────────────────┘  └────┬────┘
//	═══════╧══════════════════════════════╧════
func TestBandwidthLatency(t *testing.T) {
	if why := noFq() + noType("type veth && tc qdisc add dev probe0 root htb"); why != "" {
		t.Skip(why)
	}
	c := up(t, setup{mode: pacedMode("native")})
	const limit = "20M"
	var waits, htb, classes [2]time.Duration
	c.limit("a1", map[string]string{"egress": limit})
	for i, f := range c.stack.families {
		waits[i] = c.slowRoundTrip(f)
	}
	small, large := c.ownRoundTrips()
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
		result{"bandwidth/p99_vs_htb_classes", worstRatio(waits, classes), "ratio"},
		result{"bandwidth/own_median_vs_large", worstRatio(small, large), "ratio"})
}

// ownRoundTrips are the medians, by family, of round trips of a1, which has a limit of 1 Mbit/s and sends as much by
// another connection: with packets as small as the limit makes them, and as large as without.
func (c *cluster) ownRoundTrips() (small, large [2]time.Duration) {
	c.t.Helper()
	median := func(family int) time.Duration {
		busy := c.loadTCP("a1", "a2", family, 1)
		defer busy.stop()
		time.Sleep(rateAfter)
		return c.roundTrips("a1", "a2", family, own)[own/2]
	}
	c.limit("a1", map[string]string{"egress": "1M"})
	c.wantSegments("a1", segmentsAt(1e6))
	c.anyRTT("a1")
	for i, f := range c.stack.families {
		small[i] = median(f)
	}
	check(c.t, c.Pod("a1").Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.LinkSetGSOMaxSegs(link, 65535)
		}
		return err
	}))
	for i, f := range c.stack.families {
		large[i] = median(f)
		c.t.Logf("IPv%d beside a connection of its own: median %s; with large packets %s", f, small[i], large[i])
		if 3*small[i] > large[i] {
			c.t.Errorf("IPv%d: the median is %s, with large packets %s, which is less than 3 times as much", f,
				small[i], large[i])
		}
	}
	return small, large
}

// anyRTT has TCP of a pod make packets as large as its device takes them, whatever the RTT is. TCP sizes packets by the
// pacing rate, to which it adds 64 KiB, halved by each 2^tcp_tso_rtt_log µs of the connection's least RTT. By default,
// that is 0.5 ms, and an emulator's RTT of several ms makes packets small without any limit.
func (c *cluster) anyRTT(pod string) {
	c.t.Helper()
	const second = "20" // 2^20 µs
	check(c.t, c.Pod(pod).Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_tso_rtt_log", []byte(second), 0)
	}))
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
	n, _ := roundTrips()
	took := c.roundTrips("b1", "b2", family, n)
	p99 := took[len(took)*99/100]
	c.t.Logf("IPv%d beside %.1f Mbit/s: median %s, p99 %s", family, rate/1e6, took[len(took)/2], p99)
	return p99
}

// roundTrips are those of a connection, the shortest first.
func (c *cluster) roundTrips(from, to string, family, n int) (took []time.Duration) {
	c.t.Helper()
	a, b := c.end(from), c.end(to)
	client, server, err := connect(c.t.Context(), a, b, at(a.addr(family), 0), at(b.addr(family), 0))
	check(c.t, err)
	defer client.Close()
	defer server.Close()
	go func() { _, _ = io.Copy(server, server) }()
	for range n {
		one, err := roundTrip(client)
		check(c.t, err)
		took = append(took, one)
	}
	slices.Sort(took)
	return took
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
