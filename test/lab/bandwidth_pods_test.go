package labtest

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"myelin/status"
)

// podsFor is how long pods are measured.
const podsFor = 10 * time.Second

// maxBatch is how many datagrams of a load fit into one packet.
const maxBatch = 54

// podLimits are the limits of ten pods, in bit/s: less where the kernel is emulated in real time.
func podLimits() []float64 {
	if os.Getenv(envRecord) == "1" {
		return []float64{1e6, 2e6, 3e6, 5e6, 10e6, 20e6, 50e6, 100e6, 200e6, 2000e6}
	}
	return []float64{1e6, 1e6, 1e6, 2e6, 2e6, 2e6, 2e6, 3e6, 3e6, 3e6}
}

// TestBandwidthPods: ten pods of a node, which send at the same time as much as they can, all stay within 2 % of their
// limits. What counts are the frames that come to the other node, at the times at which they come.
//
//	┌─ node1 ─────────────────────┐  ┌─ node2 ───┐
//	│ a1 … j1, each with a limit  │  │ a2 … j2   │
//	└──────┬──────────────────────┘  └───┬───────┘
//	═══════╧═════════════════════════════╧════════
func TestBandwidthPods(t *testing.T) {
	if why := noFq(); why != "" {
		t.Skip(why)
	}
	c := up(t, setup{mode: pacedMode("native"), pods: strings.Split("abcdefghij", "")})
	c.says("BandwidthManager", status.OK, "EDT with BPF [")
	annotations := map[string]string{}
	var rows []string
	for i, limit := range podLimits() {
		annotations[podLetter(i)+"1"] = fmt.Sprintf("kubernetes.io/egress-bandwidth: %.1fM", limit/1e6)
		rows = append(rows, podLetter(i)+"1 egress ")
	}
	c.annotate(annotations)
	c.listsLimits("a1", rows...)
	for i, limit := range podLimits() {
		c.wantSegments(podLetter(i)+"1", segmentsAt(limit)) // before connections are made
	}
	worst := 0.0
	for _, f := range c.stack.families {
		worst = max(worst, c.worstOff("TCP", f), c.worstOff("UDP", f))
	}
	record(t, result{"bandwidth/worst_error_percent", worst, "%"})
}

// segmentsAt is how many segments packets have at most at a limit in bit/s: those of 10 ms.
func segmentsAt(limit float64) uint32 {
	if n := uint32(limit / 8 / 100 / 1500); n < 128 {
		return max(n, 4)
	}
	return 65535
}

// sendBuffer is the size for a socket, in bytes, with which it holds most of what may wait for a pod with a limit in
// bit/s, and no more: what it sent beyond that would be dropped at once, and take the processor from the other pods.
// The kernel doubles the size.
func sendBuffer(limit float64) int {
	perSecond := limit / 8
	horizon := max(perSecond/100, min(2*perSecond, 2<<20))
	return int(horizon * 0.8 / 2)
}

func podLetter(i int) string { return string(rune('a' + i)) }

// worstOff measures the ten pods at once, and returns how far the worst is from its limit, in percent. Where a
// processor is wanting, it is measured again.
func (c *cluster) worstOff(proto string, family int) float64 {
	c.t.Helper()
	const exact, tries = 2, 4
	for try := 1; ; try++ {
		worst := 0.0
		for _, off := range c.offs(proto, family) {
			worst = max(worst, math.Abs(off))
		}
		if worst <= exact {
			return worst
		}
		if try == tries {
			c.t.Errorf("IPv%d %s: %.2f %% off a limit, want %d %% at most", family, proto, worst, exact)
			return worst
		}
	}
}

// offs are how far the pods' rates are from their limits, in percent: by all that came in the span, and by the time
// between packets.
func (c *cluster) offs(proto string, family int) (off []float64) {
	c.t.Helper()
	limits := podLimits()
	w := c.wire("node2")
	for i, limit := range limits {
		from, to := podLetter(i)+"1", podLetter(i)+"2"
		var l saturation
		if proto == "TCP" {
			l = c.loadTCP(from, to, family, rateStreams)
		} else {
			l = c.loadUDP(from, to, family, min(1+int(limit/2.5e6), maxBatch), sendBuffer(limit))
		}
		defer l.stop()
	}
	time.Sleep(rateAfter)
	start := time.Now()
	time.Sleep(podsFor)
	from := w.stop()
	for i, limit := range limits {
		packets := within(from[c.end(podLetter(i)+"1").addr(family)], start, podsFor)
		bytes, frames := 0, 0
		for _, p := range packets {
			bytes, frames = bytes+p.bytes, frames+p.frames
		}
		all, between := 100*(float64(bytes)*8/podsFor.Seconds()/limit-1), 100*(wireRate(packets)/limit-1)
		c.t.Logf("IPv%d %s %.0f Mbit/s: %+.2f %% in the span, %+.2f %% between packets, %d packets of %.1f frames",
			family, proto, limit/1e6, all, between, len(packets), float64(frames)/float64(max(1, len(packets))))
		off = append(off, all, between)
	}
	return off
}
