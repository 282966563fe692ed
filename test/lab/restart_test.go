package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// rounds is how often each way of ending an agent is tried.
const rounds = 20

// TestRestart ends the agents of both nodes in every way, 20 times each (4 in modes other than native, and with
// -short), under TCP streams and UDP at 1,000 packets a second that must not lose anything: on a node, across nodes,
// and masqueraded.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ───────┐
//	│ a1 ⇄ b1                 │  │               │
//	│ a1 ⇄────────────────────┼──┼─⇄ a2          │
//	│ a1 ⇄─┐ as node1   agent │  │         agent │     agents restart, die, are upgraded, change map sizes
//	└──────┼──────────────────┘  └───────────────┘
//	═══════╧═ world ══════════════════════════════
func TestRestart(t *testing.T) {
	total := &losses{}
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "agent")
			relink(t, filepath.Join(binDir(), "myelin"), program)
			c := up(t, setup{mode: m, agent: program})
			n := rounds
			if m.name != "native" || testing.Short() {
				n = rounds / 5
			}
			r := &restarter{cluster: c, program: program, versions: []string{filepath.Join(binDir(), "myelin"),
				nextBinary(t)}}
			r.load = startLoad(c)
			for i := range fewer(n) {
				r.round(i)
				if t.Failed() {
					break
				}
			}
			total.add(r.load.stop())
			if t.Failed() {
				return // what more goes wrong then takes long, and says nothing
			}
			c.newPodWorks("c1", way{"c1", "a1", "c1"}, way{"a1", "c1", "a1"}, way{"c1", "a2", "c1"},
				way{"a2", "c1", "a2"}, way{"c1", "world", "node1"})
		})
	}
	record(t, result{"restart/packets_lost", float64(total.packets), "packets"},
		result{"restart/connections_broken", float64(total.connections), "connections"})
}

// restarter ends agents.
type restarter struct {
	*cluster
	program  string   // the link that agents are started by
	versions []string // what it points to in turn
	load     *load
}

// round ends the agents in each way, and looks at the load after each, so that a failure names its cause.
func (r *restarter) round(i int) {
	for _, way := range []struct {
		name string
		do   func(context.Context, string) error
	}{
		{"restart", func(ctx context.Context, node string) error { return r.Node(node).RestartAgent(ctx) }},
		{"kill -9", r.kill},
		{"upgrade", r.upgrade(i)},
		{"other map sizes", r.resize(i)},
	} {
		ctx, cancel := context.WithTimeout(r.t.Context(), patience(30*time.Second))
		var g errgroup.Group
		for _, node := range []string{"node1", "node2"} {
			g.Go(func() error { return way.do(ctx, node) })
		}
		err := g.Wait()
		cancel()
		if err != nil {
			r.t.Errorf("round %d, %s: %v", i, way.name, err)
			return
		}
		if err := r.load.settled(); err != nil {
			r.t.Errorf("round %d, %s: %v", i, way.name, err)
			return
		}
	}
}

// kill ends an agent at once; while none runs, new connections work all the same.
func (r *restarter) kill(ctx context.Context, node string) error {
	if err := r.Node(node).KillAgent(ctx); err != nil {
		return err
	}
	for _, to := range []string{"b1", "a2", "world"} {
		from, to := r.end("a1"), r.end(to)
		for _, f := range r.stack.families {
			if _, err := tcp(ctx, from, to, to.addr(f), 10000); err != nil {
				return fmt.Errorf("new connection over IPv%d to %s while no agent runs: %w", f, to.Name(), err)
			}
		}
	}
	return r.Node(node).StartAgent(ctx, nil)
}

// upgrade replaces the agent by the other version.
func (r *restarter) upgrade(i int) func(context.Context, string) error {
	relink(r.t, r.versions[(i+1)%2], r.program)
	return func(ctx context.Context, node string) error { return r.Node(node).RestartAgent(ctx) }
}

// resize has the new agent find maps that don't fit: it makes others, and moves the rows.
func (r *restarter) resize(i int) func(context.Context, string) error {
	return func(ctx context.Context, node string) error {
		if err := r.Node(node).StopAgent(ctx); err != nil {
			return err
		}
		return r.Node(node).StartAgent(ctx, map[string]any{"bpf.ctTcpMax": 20000 + 1000*(i%2)})
	}
}

func relink(t *testing.T, target, link string) {
	t.Helper()
	tmp := link + ".new"
	if err := os.Symlink(target, tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, link); err != nil {
		t.Fatal(err)
	}
}

// newPodWorks adds a pod to node1 and sends something each of the ways. Its addresses must be no other pod's.
func (c *cluster) newPodWorks(name string, ways ...way) {
	c.t.Helper()
	taken := map[netip.Addr]string{}
	pods, err := c.Pods()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range pods {
		for _, a := range p.Addrs() {
			taken[a] = p.Name()
		}
	}
	file := filepath.Join(c.t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(podYAML(name, 1)), 0o644); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(30*time.Second))
	defer cancel()
	if err := c.Apply(ctx, file, false); err != nil {
		c.t.Fatal(err)
	}
	for _, a := range c.end(name).addrs {
		if taken[a] != "" {
			c.t.Errorf("%s is given to %s, and is %s's", a, name, taken[a])
		}
	}
	for _, f := range c.stack.families {
		for _, w := range ways {
			c.try(w, f)
		}
	}
}
