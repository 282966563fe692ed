package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"myelin/bpf/hooks"
)

// full is how many pods the node gets: with the gateway, what a /24 holds is 253.
const full = 250

// TestScale fills a node with 250 pods, one after the other, and starts the agent anew: once as an upgrade does, and
// once with nothing left in the kernel, where pods are cut off until the agent is ready.
//
//	┌─ node1 ─────────────┐
//	│ pod1 pod2 … pod250  │
//	└──────┬──────────────┘
//	═══════╧═══════════════
func TestScale(t *testing.T) {
	c := up(t, setup{nodes: 1, pods: []string{}})
	r := c.runtime("node1")
	files := c.descriptors("node1")
	pods, median := c.fillNode(r)
	if now := c.descriptors("node1"); now > files+10 {
		t.Errorf("the agent has %d open files, %d with no pod", now, files)
	}
	loads := c.programs("node1") - 1
	if _, err := udp(t.Context(), pods[0].end(), pods[full-1].end(), pods[full-1].addrs[0], 100); err != nil {
		t.Error(err)
	}
	c.overfill(r)

	warm := c.restartTime(pods, false)
	cold := c.restartTime(pods, true)
	time.Sleep(patience(500 * time.Millisecond))
	rss := c.rss("node1")
	del := c.emptyNode(r, pods)
	t.Logf("the kernel alone deletes a veth pair of the node within %v", c.linkDeletion("node1"))
	record(t,
		result{"cni/add_ms", milliseconds(median), "ms"},
		result{"cni/del_ms", milliseconds(del), "ms"},
		result{"agent/ready_s", warm.Seconds(), "s"},
		result{"agent/cold_s", cold.Seconds(), "s"},
		result{"agent/rss_mb", rss, "MB"},
		result{"agent/loads_per_pod", float64(loads) / full, "programs"},
	)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// emptyNode deletes the pods one after the other and returns the median time of a DEL, from exec of the plugin to
// its end. What the agent does after its answer must come to an end, too.
func (c *cluster) emptyNode(r *runtimeOf, pods []*sandbox) (median time.Duration) {
	c.t.Helper()
	var times []time.Duration
	for _, s := range pods {
		begin := time.Now()
		if err := r.del(c.t.Context(), s); err != nil {
			c.t.Error(err)
		}
		times = append(times, time.Since(begin))
	}
	c.podsLeft("node1", 0)
	slices.Sort(times)
	return times[len(times)/2]
}

// podsLeft waits until a node has the links and the state files of n pods.
func (c *cluster) podsLeft(node string, n int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s has %d pods", node, n), 10*time.Second, func() error {
		links := strings.Count("\n"+c.ip(node, "-o", "-br", "link"), "\nmye")
		files, err := filepath.Glob(filepath.Join(c.Node(node).RunDir(), "endpoints", "*.json"))
		if err != nil || links != n || len(files) != n {
			return fmt.Errorf("there are %d pod links and %d state files: %w", links, len(files), err)
		}
		return nil
	})
}

// linkDeletion is what the kernel itself takes to delete a veth pair that is up, at the median of 21.
func (c *cluster) linkDeletion(node string) time.Duration {
	c.t.Helper()
	var times []time.Duration
	for range 21 {
		c.ip(node, "link", "add", "bound0", "type", "veth", "peer", "name", "bound1")
		c.ip(node, "link", "set", "bound0", "up")
		c.ip(node, "link", "set", "bound1", "up")
		begin := time.Now()
		c.ip(node, "link", "del", "bound0")
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// fillNode adds the pods one after the other and returns the median time of an ADD, from exec of the plugin to its end.
func (c *cluster) fillNode(r *runtimeOf) (pods []*sandbox, median time.Duration) {
	c.t.Helper()
	var times []time.Duration
	for i := range full {
		s, err := r.create(i)
		if err != nil {
			c.t.Fatal(err)
		}
		begin := time.Now()
		if err := r.add(c.t.Context(), s); err != nil {
			c.t.Fatal(err)
		}
		times = append(times, time.Since(begin))
		pods = append(pods, s)
	}
	slices.Sort(times)
	return pods, times[len(times)/2]
}

// overfill adds pods until the podCIDR has no address left; that is an error of its own, and costs nothing.
func (c *cluster) overfill(r *runtimeOf) {
	c.t.Helper()
	const room = 253 - full
	var added []*sandbox
	for i := range room + 1 {
		s, err := r.create(full + i)
		if err != nil {
			c.t.Fatal(err)
		}
		added = append(added, s)
		err = r.add(c.t.Context(), s)
		if full := err != nil && strings.Contains(err.Error(), "in use"); full != (i == room) {
			c.t.Errorf("pod %d of %d: %v", i+1, room, err)
		}
	}
	for _, s := range added {
		if err := r.del(c.t.Context(), s); err != nil {
			c.t.Error(err)
		}
		if err := s.remove(); err != nil {
			c.t.Error(err)
		}
	}
}

// restartTime is from exec of the agent until it is ready and a packet passes between the first pod and the last one.
// Cold, the agent finds nothing of the datapath, and no packet passes before.
func (c *cluster) restartTime(pods []*sandbox, cold bool) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(time.Minute))
	defer cancel()
	n := c.Node("node1")
	if err := n.StopAgent(ctx); err != nil {
		c.t.Fatal(err)
	}
	from, to := pods[0].end(), pods[len(pods)-1].end()
	if cold {
		if err := os.RemoveAll(filepath.Join(n.BPFRoot(), "myelin")); err != nil {
			c.t.Fatal(err)
		}
	}
	server, err := to.listenUDP(ctx, at(to.addrs[0], 0))
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	client, err := from.dialUDP(ctx, netip.AddrPort{}, addrPort(server.LocalAddr()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	if err := n.StartAgent(ctx, nil); err != nil {
		c.t.Fatal(err)
	}
	for {
		_ = client.SetDeadline(time.Now().Add(2 * time.Millisecond))
		_ = server.SetDeadline(time.Now().Add(2 * time.Millisecond))
		if _, err := client.Write([]byte("there?")); err != nil {
			c.t.Fatal(err)
		}
		if _, _, err := server.ReadFromUDPAddrPort(make([]byte, 10)); err == nil {
			return time.Since(begin)
		}
		if ctx.Err() != nil {
			c.t.Fatal("no packet passes after the restart")
		}
	}
}

// programs is how many different programs the pod links run.
func (c *cluster) programs(node string) int {
	c.t.Helper()
	pins := c.settled(node)
	if len(pins) == 0 {
		c.t.Skip("the kernel has no TCX, whose pinned links programs are counted by")
	}
	ids := map[ebpf.ProgramID]bool{}
	for _, pin := range pins {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		ids[info.Program] = true
	}
	return len(ids)
}

// settled waits until the programs of all pods hang by pinned links, and returns the pins; none where the kernel has no
// TCX.
func (c *cluster) settled(node string) (pins []string) {
	c.t.Helper()
	if hooks.TCX() != nil {
		return nil
	}
	links := "\n" + c.ip(node, "-o", "-br", "link")
	pods := strings.Count(links, "\nmye") - strings.Count(links, "\nmyelin_") // the others are the node's own
	for end := time.Now().Add(patience(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		pins, err := filepath.Glob(c.Node(node).BPFRoot() + "/myelin/links/mye*-from_pod")
		if err == nil && len(pins) == pods {
			return pins
		}
		if err != nil || time.Now().After(end) {
			c.t.Fatalf("%d pods have %d pinned links: %v", pods, len(pins), err)
		}
	}
}

// rss is the agent's resident memory in MB.
func (c *cluster) rss(node string) float64 {
	c.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Node(node).AgentProcess().PID))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			return kb * 1024 / 1e6
		}
	}
	c.t.Fatal("no VmRSS")
	return 0
}

// locked is the memory of all maps in MB, as the kernel accounts it.
func (c *cluster) locked(node string) (mb float64) {
	c.t.Helper()
	pins, err := filepath.Glob(c.Node(node).BPFRoot() + "/myelin/maps/*")
	if err != nil || len(pins) == 0 {
		c.t.Fatalf("no pinned maps: %v", err)
	}
	for _, pin := range pins {
		m := c.pinnedMap(node, filepath.Base(pin))
		info, err := m.Info()
		m.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		bytes, ok := info.Memlock()
		if !ok && info.Type != ebpf.LPMTrie { // an empty one has none
			c.t.Fatalf("the kernel does not tell the memory of map %s", pin)
		}
		mb += float64(bytes) / 1e6
		c.t.Logf("map %s: %.2f MB", filepath.Base(pin), float64(bytes)/1e6)
	}
	return mb
}

// descriptors are the agent's open files.
func (c *cluster) descriptors(node string) int {
	c.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Node(node).AgentProcess().PID))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(entries)
}
