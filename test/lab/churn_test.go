package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"myelin/bpf"
)

// TestChurn adds and removes 1,000 pods by the CNI plugin, 16 at a time, beside two that stay: four times what the
// podCIDR holds, so that no address can stay behind. Nothing else of them may be left, either.
//
//	┌─ node1 ────────────────────────┐
//	│ a1  b1   16 of 1,000, at a time│
//	└──────┬─────────────────────────┘
//	═══════╧══════════════════════════
func TestChurn(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1})
	c.settled("node1")
	before := c.traces("node1")
	churn := &churner{runtimeOf: c.runtime("node1"), taken: map[netip.Addr]string{}}
	for _, name := range []string{"a1", "b1"} {
		if err := churn.take(&sandbox{name: name, addrs: c.end(name).addrs}); err != nil {
			t.Fatal(err)
		}
	}
	pods := fewer(1000)
	begin := time.Now()
	if err := churn.run(t.Context(), pods); err != nil {
		t.Error(err)
	}
	t.Logf("%d pods in %v", pods, time.Since(begin).Round(time.Millisecond))
	var leaks []string
	for end := time.Now().Add(patience(5 * time.Second)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if leaks = difference(c.traces("node1"), before); len(leaks) == 0 {
			break
		}
	}
	for _, leak := range leaks {
		t.Errorf("left by churn: %s", leak)
	}
	for _, f := range c.stack.families {
		c.try(way{"a1", "b1", "a1"}, f)
	}
	record(t, result{"churn/leaks", float64(len(leaks)), "objects"})
}

// churner knows the pods' addresses.
type churner struct {
	*runtimeOf
	mu    sync.Mutex
	taken map[netip.Addr]string
}

func (c *churner) run(ctx context.Context, pods int) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range 16 {
		g.Go(func() error {
			for i := int(next.Add(1)); i <= pods; i = int(next.Add(1)) {
				if err := c.one(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// one is the life of a pod. Every tenth loses its namespace before DEL, every other tenth sees DEL twice.
func (c *churner) one(ctx context.Context, i int) error {
	s, err := c.create(i)
	if err != nil {
		return err
	}
	if err := c.add(ctx, s); err != nil {
		return err
	}
	if err := c.take(s); err != nil {
		return err
	}
	if i%10 == 0 {
		if err := s.remove(); err != nil {
			return err
		}
	}
	c.release(s)
	for range 1 + i%10/9 {
		if err := c.del(ctx, s); err != nil {
			return err
		}
	}
	return s.remove()
}

// take notes whose addresses they are; two owners of one are an error.
func (c *churner) take(s *sandbox) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.addrs) != 2 {
		return fmt.Errorf("%s has addresses %v, want two", s.name, s.addrs)
	}
	for _, a := range s.addrs {
		if owner, ok := c.taken[a]; ok {
			return fmt.Errorf("%s is given to %s, and is %s's", a, s.name, owner)
		}
		c.taken[a] = s.name
	}
	return nil
}

// release is before DEL: the next ADD may have the address while DEL still returns.
func (c *churner) release(s *sandbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range s.addrs {
		delete(c.taken, a)
	}
}

// reachability is what the kernel thinks of a neighbour now, which changes by itself.
var reachability = regexp.MustCompile(` (REACHABLE|STALE|DELAY|PROBE|INCOMPLETE|FAILED)\b`)

// traces is everything on a node, and in the lab, that a pod leaves while it is there, a line each.
func (c *cluster) traces(node string) (lines []string) {
	c.t.Helper()
	n := c.Node(node)
	for _, args := range []string{
		"-o -br link", "-o -br address", "-4 route show table all", "-6 route show table all",
		"neighbour show nud permanent",
	} {
		for line := range strings.Lines(c.ip(node, strings.Fields(args)...)) {
			lines = append(lines, args+": "+strings.TrimSpace(reachability.ReplaceAllString(line, "")))
		}
	}
	for _, glob := range []string{
		n.BPFRoot() + "/myelin/*/*", n.RunDir() + "/endpoints/*", n.RunDir() + "/cni-deletes/*",
		n.Dir() + "/cni/cache/*/*",
		"/run/netns/" + c.Name() + "-*",
	} {
		files, err := filepath.Glob(glob)
		if err != nil {
			c.t.Fatal(err)
		}
		lines = append(lines, files...)
	}
	return append(lines, c.rows(node)...)
}

// rows are the keys of the maps that know of pods.
func (c *cluster) rows(node string) (lines []string) {
	c.t.Helper()
	endpoints, links := c.pinnedMap(node, "endpoints"), c.pinnedMap(node, "pod_links")
	defer endpoints.Close()
	defer links.Close()
	var (
		addr bpf.DatapathAddr
		row  bpf.DatapathEndpoint
		key  uint32
		link bpf.DatapathPodLink
	)
	all := endpoints.Iterate()
	for all.Next(&addr, &row) {
		lines = append(lines, "endpoints: "+addr.Netip().String())
	}
	pods := links.Iterate()
	for pods.Next(&key, &link) {
		lines = append(lines, fmt.Sprintf("pod_links: %d", key))
	}
	if err := all.Err(); err != nil {
		c.t.Fatal(err)
	}
	if err := pods.Err(); err != nil {
		c.t.Fatal(err)
	}
	return lines
}

// difference is what only one of two lists has.
func difference(now, before []string) (lines []string) {
	for _, line := range now {
		if !slices.Contains(before, line) {
			lines = append(lines, "new: "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(now, line) {
			lines = append(lines, "gone: "+line)
		}
	}
	return lines
}
