package labtest

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"time"
)

// limited is traffic that one limit applies to, in bit/s.
type limited struct {
	from, to string
	proto    string
	family   int
	limit    float64
}

func (l limited) String() string {
	return fmt.Sprintf("IPv%d %s %s→%s, %.1f Mbit/s", l.family, l.proto, l.from, l.to, l.limit/1e6)
}

// limitsHold compares the frames that come to pods, which others send more than their limits allow, with the limits.
// Each is measured for a span. Where a processor is wanting, it is measured again.
func (c *cluster) limitsHold(span time.Duration, list ...limited) {
	c.t.Helper()
	const exact, tries = 2, 6
	time.Sleep(rateAfter)
	for try := 1; len(list) > 0; try++ {
		var off []limited
		for i, percent := range c.offLimits(span, list) {
			if math.Abs(percent) <= exact {
				continue
			}
			off = append(off, list[i])
			if try == tries {
				c.t.Errorf("%s: %+.2f %% off the limit, want %d %% at most", list[i], percent, exact)
			}
		}
		if list = off; try == tries {
			return
		}
	}
}

// offLimits measures how far rates are from the limits, in percent. What counts are the times at which frames come to
// pods: what processes read in a span depends on losses before it.
func (c *cluster) offLimits(span time.Duration, list []limited) (off []float64) {
	c.t.Helper()
	wires, came := map[string]*wire{}, map[string]map[netip.Addr][]wirePacket{}
	for _, l := range list {
		if wires[l.to] == nil {
			wires[l.to] = c.wireAt(c.Pod(l.to))
		}
	}
	start := time.Now()
	time.Sleep(span)
	for pod, w := range wires {
		came[pod] = w.stop()
	}
	for _, l := range list {
		packets := within(came[l.to][c.end(l.from).addr(l.family)], start, span)
		off = append(off, 100*(wireRate(packets)/l.limit-1))
		c.t.Logf("%s: %+.2f %%, %d packets", l, off[len(off)-1], len(packets))
	}
	return off
}

// saturate has a pod send more than the limit, until stop is called. UDP sends a quarter more: as much as it can would
// take the processor from the others.
func (c *cluster) saturate(l limited) (stop func()) {
	c.t.Helper()
	if l.proto == "TCP" {
		return c.loadTCP(l.from, l.to, l.family, rateStreams).stop
	}
	client, server := c.datagrams(l.from, l.to, l.family, 1, sendBuffer(l.limit))
	ctx, cancel := context.WithCancel(c.t.Context())
	go readAll(server, new(atomic.Int64))
	go offer(ctx, client, 1.25*l.limit/8/float64(datagramSize+8+headersOf(l.family)), time.Hour)
	return func() { cancel(); client.Close(); server.Close() }
}
