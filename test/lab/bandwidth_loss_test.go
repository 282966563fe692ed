package labtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// lossLimit is the limit of a pod that offers twice as much, as an annotation and in bit/s.
func lossLimit() (string, float64) {
	if os.Getenv(envRecord) == "1" {
		return "10M", 10e6
	}
	return "1M", 1e6
}

// TestBandwidthLoss: of what a pod offers by UDP beyond its limit all is lost on its node, and none on the way or in
// the receiver's buffer, which is of the usual size. A socket whose buffer holds more than may wait for the pod has
// datagrams dropped by the datapath, each of which is counted; another one is told that there is no room.
//
//	┌─ node1 ─────┐  ┌─ node2 ─┐
//	│ a1 (limit)  │  │ a2      │
//	└──────┬──────┘  └────┬────┘
//	═══════╧══════════════╧═════
func TestBandwidthLoss(t *testing.T) {
	if why := noFq(); why != "" {
		t.Skip(why)
	}
	c := up(t, setup{mode: pacedMode("native")})
	annotation, limit := lossLimit()
	c.limit("a1", map[string]string{"egress": annotation})
	lost := int64(0)
	for _, f := range c.stack.families {
		lost += c.lostElsewhere(f, 2*limit, 16<<20)
		lost += c.lostElsewhere(f, 2*limit, 0)
	}
	record(t, result{"bandwidth/udp_lost_elsewhere", float64(lost), "datagrams"})
}

// offered is what has become of datagrams.
type offered struct {
	written  int64 // by the socket
	refused  int64 // for lack of room in the socket's buffer
	dropped  int64 // for the limit
	received int64
}

// lostElsewhere has a1 offer UDP to a2 at a rate of frames, by a socket that holds so many bytes, 0: as usual. It
// returns how many datagrams were neither received nor lost on the sender's node for its limit.
func (c *cluster) lostElsewhere(family int, rate float64, buffer int) int64 {
	c.t.Helper()
	var options []option
	if buffer > 0 {
		options = append(options, intOption(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer))
	}
	a, b := c.end("a1"), c.end("a2")
	client, server, err := connectUDP(c.t.Context(), a, b, b.addr(family), options, nil)
	check(c.t, err)
	defer client.Close()
	defer server.Close()
	var bytes atomic.Int64
	go readAll(server, &bytes)
	full := map[int]string{4: "Udp: RcvbufErrors", 6: "Udp6RcvbufErrors"}[family]
	before, overflows, queue := c.outcome("node1", bpf.DatapathOutcomeDROP_BANDWIDTH), c.snmp(b, full), c.qdiscDrops()
	var o offered
	o.written, o.refused = offer(c.t.Context(), client, rate/8/float64(datagramSize+8+headersOf(family)), podsFor)
	eventually(c.t, "datagrams are received or dropped", 10*time.Second, func() error {
		o.received = bytes.Load() / datagramSize
		o.dropped = int64(c.outcome("node1", bpf.DatapathOutcomeDROP_BANDWIDTH) - before)
		if o.received+o.dropped < o.written {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	c.t.Logf("IPv%d, buffer %d: %+v", family, buffer, o)
	if total := o.written + o.refused; o.refused+o.dropped < total/4 || buffer > 0 && o.refused > 0 {
		c.t.Errorf("IPv%d: of %d datagrams at twice the limit %d are refused and %d dropped", family, total, o.refused,
			o.dropped)
	}
	if n := c.snmp(b, full) - overflows; n > 0 {
		c.t.Errorf("IPv%d: %d datagrams are lost in the receiver's buffer", family, n)
	}
	if n := c.qdiscDrops() - queue; n > 0 {
		c.t.Errorf("IPv%d: %d packets are dropped by fq", family, n)
	}
	if o.received+o.dropped != o.written {
		c.t.Errorf("IPv%d: of %d datagrams %d are received and %d dropped", family, o.written, o.received, o.dropped)
	}
	return o.written - o.received - o.dropped
}

// offer sends so many datagrams in a second, and returns how many the socket took and how many it had no room for.
func offer(ctx context.Context, to *net.UDPConn, perSecond float64, span time.Duration) (written, refused int64) {
	raw, err := to.SyscallConn()
	if err != nil {
		return 0, 0
	}
	data := make([]byte, datagramSize)
	for start := time.Now(); time.Since(start) < span && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		_ = raw.Control(func(fd uintptr) {
			for float64(written+refused) < time.Since(start).Seconds()*perSecond {
				if _, err := unix.Write(int(fd), data); err != nil {
					refused++
				} else {
					written++
				}
			}
		})
	}
	return written, refused
}

// qdiscDrops is how many packets the qdiscs have dropped in which packets of node1 wait.
func (c *cluster) qdiscDrops() (n uint32) {
	c.t.Helper()
	check(c.t, c.Node("node1").Do(func() error {
		list, err := netlink.QdiscList(nil)
		for _, q := range list {
			if s := q.Attrs().Statistics; q.Type() == "fq" && s != nil && s.Queue != nil {
				n += s.Queue.Drops
			}
		}
		return err
	}))
	return n
}
