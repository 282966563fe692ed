package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"myelin/encryption"
)

// rotations is how many keys are rotated, alternately on both nodes.
const rotations = 100

// TestEncryptionRotate rotates the nodes' keys under TCP streams and UDP at 1,000 packets a second; during the last two
// rotations agents are restarted. Nothing is lost, and afterwards each node has one device, whose peer has the other
// node's new key.
//
//	┌─ node1 ────────────────────┐  ┌─ node2 ─────────────────────┐
//	│ a1 ⇄ wg0, then wg1 (new key)  ⇄  wg0, wg1 ⇄ a2               │
//	└────────────────────────────┘  └─────────────────────────────┘
func TestEncryptionRotate(t *testing.T) {
	for _, m := range encryptionModes(wireGuard()) {
		if m.name != "native" && m.name != "strict" && m.name != "legacy" {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			c := up(t, setup{mode: m})
			c.encrypted()
			n := 2
			if m.name == "native" && !testing.Short() {
				n = fewer(rotations)
			}
			load := startLoad(c)
			for i := range n {
				if node := []string{"node1", "node2"}[i%2]; i < n-2 {
					c.rotate(node)
				} else {
					c.rotate(node, c.restarts(i == n-1))
				}
				if err := load.settled(); err != nil {
					t.Errorf("rotation %d: %v", i, err)
				}
				if t.Failed() {
					c.logCounters()
					break
				}
			}
			lost := load.stop()
			if m.name == "native" {
				record(t, result{"encrypt/rotation_lost", float64(lost.packets), "packets"},
					result{"encrypt/rotations", float64(n), "rotations"})
			}
		})
	}
}

// restarts waits until a rotation has begun, or until the key is another one already, and restarts the agents of both
// nodes.
func (c *cluster) restarts(late bool) func(string) {
	return func(before string) {
		for _, n := range []string{"node1", "node2"} {
			eventually(c.t, n+" has a second device", 20*time.Second, func() error {
				out, err := c.cli(n, "encrypt", "device")
				if err == nil && (!strings.Contains(out, encryption.RotationDevice) ||
					late && strings.Contains(out, before)) {
					err = errors.New(out)
				}
				return err
			})
		}
		c.restartAgents()
	}
}

// restartAgents restarts the agents of both nodes at once.
func (c *cluster) restartAgents() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(30*time.Second))
	defer cancel()
	var g errgroup.Group
	for _, n := range []string{"node1", "node2"} {
		g.Go(func() error { return c.Node(n).RestartAgent(ctx) })
	}
	check(c.t, g.Wait())
}

// rotate gives a node another key, and waits until all nodes use it, and no other device is there.
func (c *cluster) rotate(node string, meanwhile ...func(before string)) {
	c.t.Helper()
	key := func() string {
		data, err := os.ReadFile(encryption.PublicKeyFile(c.Node(node).RunDir()))
		check(c.t, err)
		return strings.TrimSpace(string(data))
	}
	before, start := key(), time.Now()
	c.mustCLI(node, "encrypt", "rotate", "--run-dir", c.Node(node).RunDir())
	for _, do := range meanwhile {
		do(before)
	}
	eventually(c.t, node+" has another key", time.Minute, func() error {
		for _, n := range []string{"node1", "node2"} {
			out, err := c.cli(n, "encrypt", "device")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if strings.Contains(out, before) || strings.Contains(out, encryption.RotationDevice) {
				return fmt.Errorf("%s has %s", n, out)
			}
			peers, err := c.cli(n, "encrypt", "peers")
			if err != nil {
				return err
			}
			if n != node && !strings.Contains(peers, key()) {
				return errors.New("the other node's peer has another key: " + peers)
			}
		}
		return nil
	})
	c.t.Logf("%s has another key after %s", node, time.Since(start).Round(100*time.Millisecond))
}
