package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/status"
)

// lossyFor is how long a connection over a lossy link is measured for.
const lossyFor = 10 * time.Second

func noNetem() string { return noType("type veth && tc qdisc add dev probe0 root netem delay 1ms") }

// TestBBR: sockets of new and running pods use BBR, which with 1 % of loss and 20 ms of delay is five times as fast as
// CUBIC and, as is seen in virtual time, spaces packets on the wire, and what they used before when it is switched off.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1  b1  │  │ a2  b2  │
//	└────┬────┘  └────┬────┘
//	═════╧════ netem ═╧═════
func TestBBR(t *testing.T) {
	if why := noFq() + noNetem(); why != "" {
		t.Skip(why)
	}
	c := up(t, setup{mode: pacedMode("native")})
	before := c.congestionOf("a1")
	if before == "bbr" {
		t.Skip("network namespaces use BBR already")
	}
	c.lossy("node2")
	plain, bursts := c.lossyRate()
	c.restartWith(map[string]any{"bandwidthManager.bbr": true}, "node1")
	c.says("BandwidthManager", status.OK, "EDT with BPF [BBR] [")
	c.soonUses("bbr", "a1", "b1", "node1")
	young := c.runtime("node1").start(c.t, 1)[0].end()
	eventually(t, "a new pod uses BBR", 10*time.Second, func() error { return uses(young, "bbr") })
	rate, paced := c.lossyRate()
	t.Logf("%s: %.0f bit/s, %.1f %% of packets are spaced; bbr: %.0f bit/s, %.1f %%", before, plain, 100*bursts, rate,
		100*paced)
	if rate < 5*plain {
		t.Errorf("BBR sends %.0f bit/s over a lossy link, %s %.0f, want five times as much", rate, before, plain)
	}
	/* In real time, an emulated processor that is late sends what was due meanwhile at once. */
	if os.Getenv(envRecord) == "1" && paced < 0.9 {
		t.Errorf("%.1f %% of the packets that BBR sends are spaced on the wire, want 90 %%", 100*paced)
	}
	if before == "cubic" {
		record(t, result{"bbr/lossy_vs_cubic", rate / plain, "ratio"},
			result{"bbr/spaced_percent", 100 * paced, "%"}, result{"bbr/cubic_spaced_percent", 100 * bursts, "%"})
	}
	c.restartWith(map[string]any{"bandwidthManager.bbr": true, "bandwidthManager.bbrHostNamespaceOnly": true}, "node1")
	c.soonUses("bbr", "node1")
	c.soonUses(before, "a1", "b1")
	c.restartWith(map[string]any{"bandwidthManager.bbr": false}, "node1")
	c.soonUses(before, "a1", "b1", "node1")
	eventually(t, "the new pod uses what others do", 10*time.Second, func() error { return uses(young, before) })
}

// lossy has what the fabric brings a node delayed by 20 ms, and 1 % of it lost.
func (c *cluster) lossy(node string) {
	c.t.Helper()
	out, err := exec.CommandContext(c.t.Context(), "ip", "netns", "exec", c.fabric(), "tc", "qdisc", "add", "dev", node,
		"root", "netem", "delay", "20ms", "loss", "1%", "limit", "10000").CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// lossyRate is what a connection from a1 to a2 sends, in bit/s of data that arrives, and the share of its packets that
// are spaced on the wire.
func (c *cluster) lossyRate() (rate, spaced float64) {
	c.t.Helper()
	w := c.wire("node2")
	l := c.loadTCP("a1", "a2", 4, 1)
	defer l.stop()
	rate = rates(lossyFor, l)[0]
	end := time.Now()
	return rate, spacedShare(within(w.stop()[c.end("a1").addr(4)], end.Add(-lossyFor), lossyFor))
}

// spacedShare is the share of packets that come no sooner after the one before than at three times the rate of all.
func spacedShare(packets []wirePacket) float64 {
	rate, spaced := wireRate(packets), 0
	for i := range len(packets) - 1 {
		if packets[i+1].at.Sub(packets[i].at).Seconds() >= float64(packets[i].bytes)*8/rate/3 {
			spaced++
		}
	}
	return float64(spaced) / float64(max(1, len(packets)-1))
}

// congestionOf is the algorithm of a new socket.
func (c *cluster) congestionOf(name string) string {
	c.t.Helper()
	algorithm, err := algorithmOf(c.end(name))
	if err != nil {
		c.t.Fatal(err)
	}
	return algorithm
}

func algorithmOf(e end) (algorithm string, err error) {
	l, err := e.listenTCP(context.Background(), at(netip.IPv4Unspecified(), 0))
	if err != nil {
		return "", err
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			algorithm, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		})
	}
	return strings.TrimRight(algorithm, "\x00"), err
}

// uses checks the algorithm of a new socket, and with BBR that it does not start slowly after a pause.
func uses(e end, want string) error {
	algorithm, err := algorithmOf(e)
	if err == nil && algorithm != want {
		err = fmt.Errorf("sockets of %s use %s, want %s", e.Name(), algorithm, want)
	}
	slow := "1"
	if want == "bbr" {
		slow = "0"
	}
	return errors.Join(err, e.Do(func() error {
		data, err := os.ReadFile("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
		if got := strings.TrimSpace(string(data)); err == nil && got != slow {
			err = fmt.Errorf("tcp_slow_start_after_idle of %s is %s", e.Name(), got)
		}
		return err
	}))
}

// soonUses waits for the algorithm of each end.
func (c *cluster) soonUses(want string, names ...string) {
	c.t.Helper()
	for _, name := range names {
		eventually(c.t, name+" uses "+want, 20*time.Second, func() error { return uses(c.end(name), want) })
	}
}
