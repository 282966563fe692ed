package labtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"myelin/lab"
)

// snapshot prints what an agent could leave on a node, in the node's namespace. Neighbours that the kernel has learnt
// are its own, and `ip` complains of peers whose namespace the kernel is still removing.
const snapshot = `
ip -o link 2>&1 | grep -v 'Peer netns reference is invalid' | sed 's/qlen.*link/link/'
ip -d -o link 2>/dev/null | grep -oE 'g[sr]o_(ipv4_)?max_size [0-9]+'
for f in -4 -6; do ip $f rule; ip $f route show table all; ip $f -o addr | sed 's/^[0-9]*//'; ip $f neigh | grep -E 'PERMANENT|NOARP|managed|proto'; done
tc qdisc show
for d in $(ls /sys/class/net 2>/dev/null; ip -o link 2>/dev/null | cut -d: -f2 | cut -d@ -f1); do for at in ingress egress; do tc filter show dev $d $at 2>/dev/null | sed "s/^/$d $at /"; done; done
cd /proc/sys/net && grep -r . ipv4 ipv6 core 2>/dev/null | grep -vE 'route/flush|random|_mem:|stable_secret' | sort
find "$NODE/run" "$NODE/bpf" "$NODE/cni/net.d" "$NODE/cni/bin" -mindepth 1 2>/dev/null | sort
true
`

// snapshotting is an agent that takes a snapshot of its node before it starts there first, and installs its own plugin.
// The node has a kernel parameter that an agent changes on a device.
func snapshotting(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nPATH=$PATH:/usr/sbin:/sbin\nexport NODE=$PWD\nif ! [ -e before ]; then\n"+
		"rm $NODE/cni/bin/myelin-cni\necho 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter\n(%s) > before 2>&1\nfi\n"+
		"%[2]s/myelin install-cni --from %[2]s/myelin-cni --bin-dir $NODE/cni/bin && exec %[2]s/myelin \"$@\"\n",
		snapshot, binDir())
	path := filepath.Join(dir, "agent")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// leftOn compares a node with what it was before its first agent, and returns the lines that differ.
func (c *cluster) leftOn(node *lab.Node) (differ []string) {
	c.t.Helper()
	before, err := os.ReadFile(filepath.Join(node.Dir(), "before"))
	check(c.t, err)
	after, err := node.Exec(c.t.Context(), "sh", "-c", "NODE="+node.Dir()+"\n("+snapshot+") 2>&1")
	check(c.t, err)
	count := map[string]int{}
	for line := range strings.Lines(string(before)) {
		count[strings.TrimSpace(line)]++
	}
	for line := range strings.Lines(after) {
		count[strings.TrimSpace(line)]--
	}
	for line, n := range count {
		switch {
		case n > 0:
			differ = append(differ, "missing: "+line)
		case n < 0:
			differ = append(differ, "left: "+line)
		}
	}
	return differ
}

// cleanUp is `myelin cleanup` on a node.
func (c *cluster) cleanUp(node *lab.Node, args ...string) (string, error) {
	return node.Exec(c.t.Context(), append([]string{"myelin", "cleanup", "--config",
		filepath.Join(node.Dir(), "agent.yaml")}, args...)...)
}

// pinnedMaps are the kernel's numbers of a node's maps.
func pinnedMaps(t *testing.T, node *lab.Node) (ids []ebpf.MapID) {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(node.BPFRoot(), "myelin/maps/*"))
	check(t, err)
	for _, pin := range pins {
		m, err := ebpf.LoadPinnedMap(pin, nil)
		check(t, err)
		info, err := m.Info()
		check(t, err)
		id, _ := info.ID()
		ids = append(ids, id)
		m.Close()
	}
	return ids
}

// TestCleanup has an agent come to a node and serve pods, and then leave for good. While it runs nothing is removed;
// while pods run, what forwards for them stays, unless they are to be cut off; at last nothing is there that wasn't
// before.
//
//	┌─ node1 ────────────────────────┐
//	│ p0  p1   agent, then clean-up  │
//	└───────────────┬────────────────┘
//	════════════════╧═════════════════
func TestCleanup(t *testing.T) {
	kpr := map[string]any{"kubeProxyReplacement": true, "loadBalancer.acceleration": "testing-only",
		"hostFirewall.enabled": true}
	bigTCP := maps.Clone(kpr)
	bigTCP["enableIPv4BIGTCP"], bigTCP["enableIPv6BIGTCP"] = true, true
	var left atomic.Int64
	t.Run("modes", func(t *testing.T) {
		for _, s := range []setup{
			{mode: modeNamed("native"), values: bigTCP},
			{mode: modeNamed("legacy"), values: map[string]any{"bpf.enableTCX": false, "socketLB.enabled": true,
				"bandwidthManager.enabled": true, "bandwidthManager.bbr": true}},
			{mode: modeNamed("vxlan"), values: kpr},
		} {
			t.Run(s.mode.name, func(t *testing.T) {
				t.Parallel()
				left.Add(int64(cleanup(t, s)))
			})
		}
	})
	record(t, result{"k8s/uninstall_leftovers", float64(left.Load()), "objects"})
}

func cleanup(t *testing.T, s setup) (left int) {
	s.nodes, s.pods, s.agent = 1, []string{}, snapshotting(t)
	c := up(t, s)
	node, r := c.Node("node1"), c.runtime("node1")
	pods := r.start(t, 2)
	if out, err := c.cleanUp(node); err == nil || !strings.Contains(err.Error(), "an agent runs") {
		t.Fatalf("cleaned up under an agent: %v\n%s", err, out)
	}
	if len(c.leftOn(node)) < 20 {
		t.Fatalf("a node with an agent and pods differs by %q only", c.leftOn(node))
	}
	bbr := s.values["bandwidthManager.bbr"] == true && hasBBR()
	if bbr {
		for _, p := range pods {
			eventually(t, "pods use BBR", 10*time.Second, func() error { return uses(p.end(), "bbr") })
		}
	}
	maps := pinnedMaps(t, node)
	check(t, node.StopAgent(t.Context()))
	if out, err := c.cleanUp(node); err == nil || !strings.Contains(err.Error(), "2 pods run still") {
		t.Fatalf("cleaned up under pods: %v\n%s", err, out)
	}
	for _, f := range c.stack.families {
		if _, err := c.once(pods[0].end(), pods[1].end(), pods[1].end().addr(f)); err != nil {
			t.Errorf("a pod that stays is cut off: %v", err)
		}
	}
	out, err := c.cleanUp(node, "--force", "--patience", "100ms")
	if err != nil {
		t.Fatalf("clean up: %v\n%s", err, out)
	}
	t.Log(out)
	differ := c.leftOn(node)
	for _, line := range differ {
		t.Error(line)
	}
	for _, p := range pods { // nothing to restore of their devices, such as gso_max_segs
		check(t, foreign(p.name).Do(func() error {
			if _, err := netlink.LinkByName("eth0"); err == nil {
				t.Errorf("%s has a device still", p.name)
			}
			return nil
		}))
		if bbr {
			c.hasCongestionOfNode(p)
		}
	}
	eventually(t, "maps are gone", 5*time.Second, func() error { return mapsGone(maps) })
	if out, err := c.cleanUp(node); err != nil {
		t.Errorf("clean up again: %v\n%s", err, out)
	}
	return len(differ)
}

// hasBBR reports whether the kernel has loaded BBR.
func hasBBR() bool {
	list, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return err == nil && slices.Contains(strings.Fields(string(list)), "bbr")
}

// hasCongestionOfNode wants a pod's congestion control to be that of the node before its first agent.
func (c *cluster) hasCongestionOfNode(p *sandbox) {
	c.t.Helper()
	before, err := os.ReadFile(filepath.Join(c.Node("node1").Dir(), "before"))
	check(c.t, err)
	for _, name := range []string{"tcp_congestion_control", "tcp_slow_start_after_idle"} {
		check(c.t, foreign(p.name).Do(func() error {
			data, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
			if !strings.Contains(string(before), "\nipv4/"+name+":"+string(data)) {
				c.t.Errorf("%s of %s is %s after clean-up", name, p.name, bytes.TrimSpace(data))
			}
			return err
		}))
	}
}

// mapsGone reports maps that are still referenced.
func mapsGone(ids []ebpf.MapID) error {
	if len(ids) == 0 {
		return errors.New("the agent had none")
	}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = fmt.Errorf("%s is there still", m)
		m.Close()
		return err
	}
	return nil
}
