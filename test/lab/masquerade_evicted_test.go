package labtest

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"myelin/bpf"
)

// TestMasqueradeEvicted removes the conntrack entries of masqueraded connections, as a full table does: those in which
// the pod sends next go on, and those in which the world does are reset, as docs/limits.md says.
//
//	┌─ node1 ──────┐
//	│ a1           │ ◄──► world
//	└──────────────┘
func TestMasqueradeEvicted(t *testing.T) {
	for _, m := range masqueradeModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m, nodes: 1, pods: []string{"a"}})
			for _, f := range c.stack.families {
				list := c.masqueradedTo(t, f, 10)
				for range 2 {
					c.evictMasqueraded(t, "node1")
					for i, each := range list {
						if err := each.exchange(patience(3 * time.Second)); err != nil {
							t.Errorf("IPv%d, connection %d, when the pod sends first: %v", f, i, err)
						}
					}
				}
				c.evictMasqueraded(t, "node1")
				for i, each := range list {
					if err := each.resetFirst(); err != nil {
						t.Errorf("IPv%d, connection %d, when the world sends first: %v", f, i, err)
					}
				}
			}
		})
	}
}

// masqueradedTo opens n connections from a1 to the world.
func (c *cluster) masqueradedTo(t *testing.T, f, n int) (list []connection) {
	t.Helper()
	world := c.end("world")
	for range n {
		client, server, err := connect(t.Context(), c.end("a1"), world, netip.AddrPort{}, at(world.addr(f), 0))
		check(t, err)
		t.Cleanup(func() { client.Close(); server.Close() })
		each := connection{client: client, server: server}
		check(t, each.exchange(patience(3*time.Second)))
		list = append(list, each)
	}
	return list
}

// evictMasqueraded removes all entries of masqueraded flows of a node.
func (c *cluster) evictMasqueraded(t *testing.T, node string) {
	t.Helper()
	time.Sleep(patience(100 * time.Millisecond)) // as long as a CPU uses its flow cache
	m := c.pinnedMap(node, "flows")
	defer m.Close()
	var keys []bpf.DatapathFlowKey
	check(t, bpf.Each(m, func(key *bpf.DatapathFlowKey, row *bpf.DatapathFlow) bool {
		if bpf.DatapathFlowFlag(row.Flags)&bpf.DatapathFlowFlagFLOW_NAT != 0 {
			keys = append(keys, *key)
		}
		return true
	}))
	if len(keys) == 0 {
		t.Fatal("no flow is masqueraded")
	}
	for _, key := range keys {
		check(t, m.Delete(&key))
	}
}

// resetFirst has the world send: the node knows no pod for its port, and its kernel resets the connection at the world.
func (c connection) resetFirst() error {
	if _, err := c.server.Write([]byte{1}); err != nil {
		return err
	}
	if err := c.server.SetDeadline(time.Now().Add(patience(3 * time.Second))); err != nil {
		return err
	}
	if _, err := c.server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the world gets %w, want a reset", errOr(err, "data"))
	}
	return nil
}
