package labtest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
)

// manifestModes find other nodes in different ways: by routes that the kernel has, and by rows of the datapath.
func manifestModes() []mode {
	return []mode{modeNamed("native"), modeNamed("legacy"), modeNamed("vxlan")}
}

// TestNodes adds a Node to a cluster that runs, moves its pods to another podCIDR, breaks its file, and takes it away.
// The third node is a namespace on the fabric that answers for one pod; it has no agent.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐  ┌─ node3 ───────────┐
//	│ a1      │  │ a2      │  │ 10.0.3.9 10.0.4.9 │
//	└────┬────┘  └────┬────┘  └─────────┬─────────┘
//	═════╧════════════╧═════════════════╧══════════
func TestNodes(t *testing.T) {
	for _, m := range manifestModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m, pods: []string{"a"}})
			third := c.addThird()
			file := filepath.Join(c.Manifests(), "third.yaml")
			write := func(yaml string) {
				t.Helper()
				if err := replaceFile(file, yaml); err != nil {
					t.Fatal(err)
				}
			}
			c.reaches(third, 3, false)
			write(c.nodeYAML(3))
			c.reaches(third, 3, true)
			c.reaches(third, 4, false)

			moved := strings.NewReplacer("10.0.3.0", "10.0.4.0", "fd00:10:0:3::",
				"fd00:10:0:4::").Replace(c.nodeYAML(3))
			write(moved)
			c.reaches(third, 4, true)
			c.reaches(third, 3, false)

			// A file that can't be read keeps what it said before in force, and all other files, too.
			for _, bad := range []string{
				"kind: Node\n\tapiVersion: v1",
				strings.Replace(moved, "10.0.4.0/24", "10.0.4.0/99", 1),
				strings.Replace(moved, "spec:", "specs:", 1),
			} {
				write(bad)
				time.Sleep(patience(200 * time.Millisecond))
				c.reaches(third, 4, true)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			c.reaches(third, 4, false)
			for _, f := range c.stack.families {
				c.try(way{"a1", "a2", "a1"}, f)
			}
		})
	}
}

// replaceFile writes a file at once, as careful tools do.
func replaceFile(path, text string) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// podOfThird is the pod of the third node in the podCIDR with that number.
func podOfThird(n, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(n), 9})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:0:%d::9", n))
}

// addThird makes the namespace of a third node, and routes back to the pods of the others.
func (c *cluster) addThird() end {
	c.t.Helper()
	fabric, third := c.Name()+"-fabric", c.Name()+"-third"
	c.command("ip", "netns", "add", third)
	c.command("ip", "-n", fabric, "link", "add", "third", "type", "veth", "peer", "name", "eth0", "netns", third)
	for _, args := range []string{fabric + " link set third master fabric up", third + " link set eth0 up",
		third + " link set lo up"} {
		c.command(append([]string{"ip", "-n"}, strings.Fields(args)...)...)
	}
	var addrs []netip.Addr
	for _, f := range c.stack.families {
		bits := map[int]int{4: 24, 6: 64}[f]
		c.command(append([]string{"ip", "-n", third, "address", "add", fmt.Sprintf("%s/%d", nodeAddr(3, f), bits),
			"dev", "eth0"}, nodad(f)...)...)
		for n := 3; n <= 4; n++ {
			a := podOfThird(n, f)
			addrs = append(addrs, a)
			c.command("ip", "-n", third, "address", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo")
		}
		for i := 1; i <= 2; i++ {
			pods := netip.PrefixFrom(gateway(i, f), bits).Masked()
			c.command("ip", "-n", third, "route", "add", pods.String(), "via", nodeAddr(i, f).String())
		}
	}
	return end{foreign(third), addrs}
}

// nodad lets an address work at once; IPv4's do.
func nodad(family int) []string {
	if family == 4 {
		return nil
	}
	return []string{"nodad"}
}

// reaches waits until pods of both nodes get, or don't get, answers of the third node's pod in the podCIDR with that
// number, from their own addresses: one that is not known to be the cluster's is masqueraded. In tunnel mode, where the
// third node would have to be a tunnel's end, the datapath's rows are looked at instead.
func (c *cluster) reaches(third end, n int, want bool) {
	c.t.Helper()
	if c.mode.tunnel != 0 {
		c.knows(n, want)
		return
	}
	for _, f := range c.stack.families {
		dst := podOfThird(n, f)
		for _, pod := range []string{"a1", "a2"} {
			from := c.end(pod)
			eventually(c.t, fmt.Sprintf("%s→%s, want %v", pod, dst, want), 5*time.Second, func() error {
				seen, err := c.once(from, third, dst)
				if got := err == nil && seen == from.addr(f); got != want {
					return fmt.Errorf("seen from %s: %w", seen, errOr(err, "another answer than wanted"))
				}
				return nil
			})
		}
	}
}

// knows waits until both nodes' datapaths have the podCIDR behind the third node, or not at all.
func (c *cluster) knows(n int, want bool) {
	c.t.Helper()
	for _, f := range c.stack.families {
		key := bpf.Prefix(netip.PrefixFrom(podOfThird(n, f), map[int]int{4: 24, 6: 64}[f]))
		for _, node := range []string{"node1", "node2"} {
			m := c.pinnedMap(node, "prefixes")
			defer m.Close()
			eventually(c.t, fmt.Sprintf("podCIDR %s in the datapath of %s, want %v", key.Netip(), node, want),
				5*time.Second, func() error {
					var row bpf.DatapathPrefix
					// of a trie: the longest prefix that holds the key, the podCIDRs being the only ones
					err := m.Lookup(key, &row)
					if got := err == nil && row.Via.Netip() == nodeAddr(3, c.mode.tunnel); got != want {
						return fmt.Errorf("row %+v, %v", row, err)
					}
					return nil
				})
		}
	}
}

// once asks once, and waits for the answer for a short time.
func (c *cluster) once(from, to end, dst netip.Addr) (seen netip.Addr, err error) {
	server, err := to.listenUDP(c.t.Context(), at(dst, 0))
	if err != nil {
		return seen, err
	}
	defer server.Close()
	client, err := from.dialUDP(c.t.Context(), netip.AddrPort{}, addrPort(server.LocalAddr()))
	if err != nil {
		return seen, err
	}
	defer client.Close()
	_ = server.SetDeadline(time.Now().Add(patience(200 * time.Millisecond)))
	if _, err := client.Write([]byte("there?")); err != nil {
		return seen, err
	}
	_, peer, err := server.ReadFromUDPAddrPort(make([]byte, 10))
	return peer.Addr().Unmap(), err
}

// TestPodDeleted deletes a pod and makes it anew, while others talk: nothing of the old one stays on any node, and the
// new one is reached at its own addresses.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1  b1  │  │ a2      │
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════
func TestPodDeleted(t *testing.T) {
	for _, m := range manifestModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m})
			c.settled("node1")
			before := c.traces("node1")
			load := startLoad(c)
			c.newPodWorks("c1", way{"c1", "b1", "c1"}, way{"a2", "c1", "a2"})
			old := c.end("c1").addrs
			if err := c.DeletePod(t.Context(), "default/c1"); err != nil {
				t.Fatal(err)
			}
			// DEL is answered when the datapath has forgotten the pod; its link and file go in the background.
			eventually(t, "nothing is left of the pod", 5*time.Second, func() error {
				if lines := difference(c.traces("node1"), before); len(lines) > 0 {
					return fmt.Errorf("the pod left %s", strings.Join(lines, "\n"))
				}
				return nil
			})
			c.newPodWorks("c1", way{"c1", "b1", "c1"}, way{"a2", "c1", "a2"})
			t.Logf("addresses were %v, are %v", old, c.end("c1").addrs)
			if err := load.settled(); err != nil {
				t.Error(err)
			}
			load.stop()
		})
	}
}
