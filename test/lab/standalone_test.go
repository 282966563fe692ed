package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/lab"
)

// standaloneLab is a load balancer without a cluster, and two machines that serve:
//
//	  lb 192.168.64.1          server 192.168.64.2       world 198.51.100.1
//	     fd00:64::1                   fd00:64::2               2001:db8:64::1
//	      │ agent, clients              │ :8080                  │ :8080
//	════╧═════════════════════════════╧══════════════════════╧════
type standaloneLab struct {
	*cluster
	node      *lab.Node
	endServer func() // ends that of node2
	quicPort  uint16 // of the last QUIC packet
}

func upStandalone(t *testing.T, more map[string]any) *standaloneLab {
	t.Helper()
	values := map[string]any{"loadBalancer.standalone": true}
	maps.Copy(values, more)
	c := up(t, setup{nodes: 2, pods: []string{}, values: values})
	g := &standaloneLab{cluster: c, node: c.Node("node1")}
	g.endServer = g.serve("node2")
	return g
}

// serve starts a server on a node, which ends with the test or with what is returned.
func (g *standaloneLab) serve(node string) func() {
	g.t.Helper()
	n := g.Node(node)
	cmd := n.Command(context.Background(), "myelin", "lab", "serve")
	cmd.Env = append(cmd.Env, "HOSTNAME="+node)
	if err := n.Start(cmd); err != nil {
		g.t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		if err := cmd.Process.Kill(); err != nil {
			g.t.Error(err)
		}
		_ = cmd.Wait() // it was killed
	})
	g.t.Cleanup(end)
	return end
}

// run is a command of the command line on the load balancer.
func (g *standaloneLab) run(args ...string) (string, error) {
	return g.node.Exec(g.t.Context(), append([]string{"myelin"}, args...)...)
}

func (g *standaloneLab) must(args ...string) string {
	g.t.Helper()
	out, err := g.run(args...)
	if err != nil {
		g.t.Fatal(err)
	}
	return out
}

// answers are the servers that answered n calls to an address, each once, sorted.
func (g *standaloneLab) answers(vip netip.AddrPort, n int) string {
	seen := map[string]bool{}
	for range n {
		server, err := g.call("node1", "http://"+vip.String()+"/")
		if err != nil {
			server = "none"
		}
		seen[server] = true
	}
	var names []string
	for _, name := range []string{"node2", "none", "world"} {
		if seen[name] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// allBecome waits until calls to each address are answered by these.
func (g *standaloneLab) allBecome(want string) {
	g.t.Helper()
	for _, vip := range vips() {
		eventually(g.t, vip.String(), 15*time.Second, func() error {
			if got := g.answers(vip, 8); got != want {
				return fmt.Errorf("answered by %s, want %s", got, want)
			}
			return nil
		})
	}
}

// has waits until a command prints a text; how wide columns are doesn't count.
func (g *standaloneLab) has(want string, args ...string) {
	g.t.Helper()
	eventually(g.t, strings.Join(args, " "), 10*time.Second, func() error {
		if out := g.must(args...); !strings.Contains(words(out), words(want)) {
			return fmt.Errorf("want %q in\n%s", want, out)
		}
		return nil
	})
}

// words is a text with single blanks.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// vips are a Service's addresses, which no machine has.
func vips() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:80"), netip.MustParseAddrPort("[2001:db8::a]:80")}
}

// TestStandalone: without Kubernetes, the command line programs a Service of both families; sockets of the machine
// reach it; it is there after kill -9; a backend in maintenance stays so; backends are checked.
func TestStandalone(t *testing.T) {
	t.Parallel()
	g := upStandalone(t, nil)
	upsert := []string{"service", "upsert", "web", "--frontend", vips()[0].String() + "/TCP", "--frontend",
		vips()[1].String() + "/TCP"}
	for _, of := range []string{"node2", "world"} {
		for _, f := range []int{4, 6} {
			upsert = append(upsert, "--backend", netip.AddrPortFrom(g.end(of).addr(f), 8080).String())
		}
	}
	if out := g.must(upsert...); out != "service web programmed\n" {
		t.Errorf("got %q", out)
	}
	g.allBecome("node2 world")
	g.has(`ID   Frontend               Service Type   Service   Port   Backend
1    192.0.2.10:80/TCP      LoadBalancer   web       -      1 => 192.168.64.2:8080/TCP (active)
                                                            2 => 198.51.100.1:8080/TCP (active)
1    [2001:db8::a]:80/TCP   LoadBalancer   web       -      1 => [2001:db8:64::1]:8080/TCP (active)
                                                            2 => [fd00:64::2]:8080/TCP (active)
`, "service", "list")
	g.has("Kubernetes: none; 1 Service programmed", "status", "--verbose")
	t.Run("maintenance", func(*testing.T) { g.testMaintenance() })
	t.Run("health", func(*testing.T) { g.testHealth(upsert) })
	t.Run("refused", func(*testing.T) { g.testRefused() })
	if out := g.must("service", "watch", "-n", "2"); !strings.HasPrefix(out,
		"upserted web 192.0.2.10:80/TCP [2001:db8::a]:80/TCP => ") || !strings.HasSuffix(out, "\nsynced\n") {
		t.Errorf("got %q", out)
	}
	g.must("service", "delete", "web")
	eventually(t, "the address means nothing", 5*time.Second, func() error {
		if got := g.answers(vips()[0], 1); got != "none" {
			return errors.New(got)
		}
		return nil
	})
	if out := g.must("service", "list"); words(out) != "ID Frontend Service Type Service Port Backend" {
		t.Errorf("got %q", out)
	}
	if left, _ := filepath.Glob(filepath.Join(g.node.RunDir(), "services", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// testMaintenance: a state that is said outlives the agent, which is not needed for what is known.
func (g *standaloneLab) testMaintenance() {
	set := func(state string) {
		for _, f := range []int{4, 6} {
			g.must("backend", "set", netip.AddrPortFrom(g.end("node2").addr(f), 8080).String(), "--state", state)
		}
	}
	set("maintenance")
	g.allBecome("world")
	g.restart("world")
	g.has("192.168.64.2:8080/TCP maintenance", "backend", "list")
	set("active")
	g.allBecome("node2 world")
}

// restart kills the agent and starts it, and wants the same answers all the time.
func (g *standaloneLab) restart(want string) {
	g.t.Helper()
	check := func(when string) {
		g.t.Helper()
		for _, vip := range vips() {
			if got := g.answers(vip, 8); got != want {
				g.t.Errorf("%s %s an agent is answered by %s, want %s", vip, when, got, want)
			}
		}
	}
	if err := g.node.KillAgent(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	check("without")
	if err := g.node.StartAgent(g.t.Context(), nil); err != nil {
		g.t.Fatal(err)
	}
	check("with")
}

// testHealth ends the server on node2 and starts it again; an agent that starts meanwhile sends no client there.
func (g *standaloneLab) testHealth(upsert []string) {
	g.must(append(upsert, "--health-check", "http", "--health-interval", "200ms", "--health-timeout",
		patience(time.Second).String(), "--health-fall", "2")...)
	g.has("passing", "backend", "list")
	g.endServer()
	g.allBecome("world")
	g.has("failing: connect: connection refused", "backend", "list")
	_, metrics := g.health(g.t, "node1", "/metrics")
	contains(g.t, "/metrics", metrics, `myelin_health_check_up{backend="192.168.64.2:8080/TCP",service="web"} 0`,
		`myelin_health_check_up{backend="198.51.100.1:8080/TCP",service="web"} 1`,
		`myelin_health_checks_total{result="failed"}`)
	g.restart("world")
	g.serve("node2")
	g.allBecome("node2 world")
}

// testRefused: what is wrong is told by its field, and what is not there by its name.
func (g *standaloneLab) testRefused() {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"service", "upsert", "web2", "--frontend", "192.0.2.10:80"},
			"frontends[0]: 192.0.2.10:80/TCP is taken: it is web's"},
		{[]string{"service", "upsert", "web2", "--frontend", "127.0.0.1:80"},
			"frontends[0]: 127.0.0.1 is a loopback address"},
		{[]string{"service", "delete", "none"}, "name: Service none is not programmed"},
		{[]string{"backend", "set", "10.99.0.1:80", "--state", "quarantined"},
			"backend: no Service has 10.99.0.1:80/TCP"},
		{[]string{"backend", "set", "10.99.0.1:80", "--state", "asleep"}, "--state asleep: want active"},
	} {
		if out, err := g.run(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			g.t.Errorf("%v: got %q, %v, want %q", c.args, out, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(g.node.Dir(), "cni", "net.d", "05-myelin.conflist")); !errors.Is(err,
		os.ErrNotExist) {
		g.t.Errorf("a node without pods has a CNI configuration: %v", err)
	}
}
