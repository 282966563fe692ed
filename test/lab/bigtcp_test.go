package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"myelin/internal/capture"
	"myelin/lab"
	"myelin/route"
	"myelin/status"
)

const (
	bigSize   = 196608
	smallSize = 65536
)

// TestBigTCP has pods of two nodes exchange packets of more than 64 KiB, which are seen where they leave the sender's
// node and where they reach the other pod. Sizes survive the agent; without BIG TCP they are what they were, also those
// of pods that ran all the time, and larger packets are gone.
//
//	┌─ node1 ─┐      ┌─ node2 ─┐
//	│ a1      │      │ a2      │
//	└────┬────┘      └────┬────┘
//	     ╰───── veth ─────╯
func TestBigTCP(t *testing.T) {
	if kernelBefore(6, 3) {
		t.Skip("BIG TCP of both families needs kernel 6.3")
	}
	for name, kind := range map[string]string{"veth": "veth", "flows": "veth", "netkit": "netkit"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if kind == "netkit" {
				needsNetkit(t)
			}
			on := map[string]any{"enableIPv4BIGTCP": true, "enableIPv6BIGTCP": true, "bpf.datapathMode": kind}
			if name == "flows" {
				on["myelin.flowTracking"] = "always"
			}
			c := up(t, setup{mode: modeNamed("native"), values: on, pods: []string{"a"}, fabric: lab.FabricWire})
			c.testBigTCP()
			c.restartWith(map[string]any{"enableIPv4BIGTCP": false, "enableIPv6BIGTCP": false}, "node1", "node2")
			c.says("IPv4 BIG TCP", status.Off, "off")
			c.wantSizes(smallSize)
			for _, f := range c.stack.families {
				if largest := c.largestFrame(f); largest > smallSize {
					t.Errorf("IPv%d: frames of %d bytes without BIG TCP", f, largest)
				}
			}
			c.restartWith(map[string]any{"enableIPv4BIGTCP": true, "enableIPv6BIGTCP": true}, "node1", "node2")
			c.testBigTCP() // pods that were there before
		})
	}
}

// TestBigTCPTunnel has a tunnel whose device takes no such packets: sizes stay as they are, and the status names it.
// Kernels whose tunnel devices do take them have BIG TCP.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1      │  │ a2      │
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════
func TestBigTCPTunnel(t *testing.T) {
	if kernelBefore(6, 3) {
		t.Skip("BIG TCP of both families needs kernel 6.3")
	}
	t.Parallel()
	c := up(t, setup{mode: modeNamed("vxlan"), pods: []string{"a"}, values: map[string]any{
		"enableIPv4BIGTCP": true, "enableIPv6BIGTCP": true, "enableTunnelBIGTCP": true,
	}})
	limit := 0
	check(t, c.end("node1").Do(func() error {
		tunnel, err := netlink.LinkByName("myelin_vxlan")
		if err == nil {
			limit = int(tunnel.Attrs().TSOMaxSize)
		}
		return err
	}))
	for _, f := range c.stack.families {
		name := fmt.Sprintf("IPv%d BIG TCP", f)
		if limit > smallSize {
			c.says(name, status.OK, "bytes")
		} else {
			c.says(name, status.Fallback, fmt.Sprintf("device myelin_vxlan takes at most %d bytes", limit))
			c.wantSizes(smallSize)
		}
		_, err := tcp(t.Context(), c.end("a1"), c.end("a2"), c.end("a2").addr(f), fewer(4<<20))
		c.errorf(f, "TCP", err)
	}
}

// restartWith restarts the agents of nodes with other values.
func (c *cluster) restartWith(values map[string]any, nodes ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(time.Minute))
	defer cancel()
	for _, name := range nodes {
		n := c.Node(name)
		if err := errors.Join(n.StopAgent(ctx), n.StartAgent(ctx, values)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// testBigTCP checks sizes, and that packets have them.
func (c *cluster) testBigTCP() {
	c.t.Helper()
	for _, f := range c.stack.families {
		c.says(fmt.Sprintf("IPv%d BIG TCP", f), status.OK, fmt.Sprintf("%d bytes", bigSize))
	}
	c.wantSizes(bigSize)
	for _, f := range c.stack.families {
		if largest := c.largestFrame(f); largest <= smallSize {
			c.t.Errorf("IPv%d: the largest frame has %d bytes", f, largest)
		}
		for _, pair := range [][2]string{{"a1", "node1"}, {"node1", "a1"}, {"a1", "node2"}, {"node2", "a1"}} {
			c.connect(c.end(pair[0]), c.end(pair[1]), f)
		}
	}
}

// wantSizes waits until wires and both ends of pod links have the size for both families.
func (c *cluster) wantSizes(want int) {
	c.t.Helper()
	all := route.Sizes{GSO6: want, GRO6: want, GSO4: want, GRO4: want}
	eventually(c.t, fmt.Sprintf("sizes of %d bytes", want), 20*time.Second, func() error {
		for _, name := range []string{"node1", "node2", "a1", "a2"} {
			err := c.end(name).Do(func() error {
				links, err := netlink.LinkList()
				for _, l := range links {
					a := l.Attrs()
					if a.Name != "lo" && (l.Type() == "veth" || l.Type() == "netkit") && route.SizesOf(a) != all {
						err = errors.Join(err, fmt.Errorf("%s of %s has %+v", a.Name, name, route.SizesOf(a)))
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// largestFrame sends some megabytes from a1 to a2, and returns the size of the largest frame that both node1's eth0 and
// a2's have seen.
func (c *cluster) largestFrame(family int) int {
	c.t.Helper()
	var g errgroup.Group
	var files []*os.File
	sizes := make([]int, 2)
	for i, name := range []string{"node1", "a2"} {
		var f *os.File
		check(c.t, c.end(name).Do(func() (err error) {
			f, err = capture.Socket("eth0", receiveBuffer)
			return err
		}))
		files = append(files, f)
		defer f.Close()
		g.Go(func() error {
			frame := make([]byte, 1<<18)
			for {
				n, err := f.Read(frame)
				if errors.Is(err, os.ErrClosed) {
					return nil
				}
				if err != nil {
					return err
				}
				sizes[i] = max(sizes[i], n)
			}
		})
	}
	a2 := c.end("a2").addr(family)
	for range 4 {
		_, err := tcp(c.t.Context(), c.end("a1"), c.end("a2"), a2, fewer(16<<20))
		c.errorf(family, "TCP", err)
	}
	time.Sleep(patience(100 * time.Millisecond))
	for _, f := range files {
		f.Close()
	}
	check(c.t, g.Wait())
	return min(sizes[0], sizes[1])
}
