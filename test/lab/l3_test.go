package labtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// l3Kind is a device without a link-layer header that joins the nodes.
type l3Kind struct {
	name  string
	needs func() string // why this kernel can't make one; "": it can
	plug  func(*cluster)
}

func l3Kinds() []l3Kind {
	return []l3Kind{
		{"TUN", noTUN, (*cluster).plugTUN},
		{"ip6tnl", func() string {
			return noType("type ip6tnl mode any local ::1 remote ::2")
		}, (*cluster).plugIP6Tunnel},
	}
}

// l3Values are for nodes whose pods reach each other by the device l30.
func l3Values() map[string]any {
	return map[string]any{"devices": []string{"eth0", "l30"}, "autoDirectNodeRoutes": false}
}

// TestL3Devices sends everything between nodes that are joined by a device without a link-layer header.
//
//	┌─ node1 ─────┐     l30     ┌─ node2 ─────┐
//	│ a1  b1      │═════════════│ a2  b2      │   TUN: two devices, whose packets the test copies
//	└──────┬──────┘             └──────┬──────┘   ip6tnl: IPv4 and IPv6 in IPv6
//	═══════╧══════════ world ══════════╧═══════
func TestL3Devices(t *testing.T) {
	for _, k := range l3Kinds() {
		for _, m := range []mode{
			{"native", nil, 0},
			{"flows", map[string]any{"myelin.flowTracking": "always"}, 0},
			{"legacy", map[string]any{"bpf.hostLegacyRouting": true}, 0},
		} {
			t.Run(k.name+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				if why := k.needs(); why != "" {
					t.Skip(why)
				}
				c := up(t, setup{mode: m, values: l3Values()})
				k.plug(c)
				c.attachedL3()
				before := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathOutcomeFORWARD_POD)
				for _, f := range c.stack.families {
					for _, w := range []way{{"a1", "a2", "a1"}, {"b2", "a1", "b2"}, {"a1", "node2", "a1"},
						{"node1", "a2", "node1"}, {"a1", "world", "node1"}} {
						c.try(w, f)
					}
				}
				n := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathOutcomeFORWARD_POD) - before
				if hostRouting := m.name != "legacy"; hostRouting != (n > 100) {
					t.Errorf("from_wire of node2 forwarded %d packets to pods", n)
				}
			})
		}
	}
}

// attachedL3 waits until the programs for such devices are on l30 of both nodes.
func (c *cluster) attachedL3() {
	c.t.Helper()
	for _, node := range []string{"node1", "node2"} {
		eventually(c.t, "from_wire_l3 is on l30 of "+node, 10*time.Second, func() error {
			out, err := c.Node(node).Exec(c.t.Context(), "myelin", "route", "wires")
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "l30 ") && strings.Contains(line, string(bpf.FromWireL3)) &&
					strings.Contains(line, "Done") {
					return nil
				}
			}
			return fmt.Errorf("%w: wires: %s", err, out)
		})
	}
}

// addressL3 gives l30 of both nodes addresses, and has them send to each other's pods by it, from the nodes' own
// addresses.
func (c *cluster) addressL3() {
	c.t.Helper()
	for i, node := range []string{"node1", "node2"} {
		other := 2 - i
		c.ip(node, "link", "set", "l30", "mtu", "1400", "up")
		c.ip(node, "address", "add", fmt.Sprintf("192.168.65.%d/24", i+1), "dev", "l30")
		c.ip(node, "address", "add", fmt.Sprintf("fd00:65::%d/64", i+1), "dev", "l30", "nodad")
		c.ip(node, "route", "add", fmt.Sprintf("10.0.%d.0/24", other), "dev", "l30", "src", nodeAddr(i+1, 4).String())
		c.ip(node, "route", "add", fmt.Sprintf("fd00:10:0:%d::/64", other), "dev", "l30", "src",
			nodeAddr(i+1, 6).String())
	}
}

func (c *cluster) plugIP6Tunnel() {
	c.t.Helper()
	for i, node := range []string{"node1", "node2"} {
		c.ip(node, "link", "add", "l30", "type", "ip6tnl", "mode", "any", "local", nodeAddr(i+1, 6).String(), "remote",
			nodeAddr(2-i, 6).String(), "encaplimit", "none")
	}
	c.addressL3()
}

func noTUN() string {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return err.Error()
	}
	return ""
}

// plugTUN makes a TUN device on each node, and copies packets from one to the other until the test ends.
func (c *cluster) plugTUN() {
	c.t.Helper()
	var ends [2]*os.File
	for i, node := range []string{"node1", "node2"} {
		check(c.t, c.Node(node).Do(func() (err error) {
			ends[i], err = openTUN("l30")
			return err
		}))
	}
	var g errgroup.Group
	for i := range ends {
		g.Go(func() error { return copyPackets(ends[1-i], ends[i]) })
	}
	c.t.Cleanup(func() {
		ends[0].Close()
		ends[1].Close()
		_ = g.Wait() // of reads that Close ended
	})
	c.addressL3()
}

// openTUN makes a TUN device in the thread's network namespace, which is gone when the file is closed.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open TUN: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// copyPackets writes what one device transmits to the other. What a device that is not up refuses is lost, as on a
// wire.
func copyPackets(to, from *os.File) error {
	packet := make([]byte, 1<<16)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return err
		}
		_, _ = to.Write(packet[:n])
	}
}
