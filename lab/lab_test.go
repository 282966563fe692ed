package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// twoNodes is a cluster with a pod of each kind.
//
//	┌─ a ────────────────────┐  ┌─ b ──────────┐
//	│ server client host     │  │ once image   │
//	│ 192.168.9.1 fd00:9::1  │  │ .2       ::2 │
//	└──────────┬─────────────┘  └──────┬───────┘
//	═══════════╧═══ world .254 ::fffe ═╧════════
const twoNodes = `
apiVersion: v1
kind: Node
metadata: {name: a}
spec: {podCIDRs: [10.0.1.0/24, "fd00:a::/64"]}
status:
  addresses:
  - {type: InternalIP, address: 192.168.9.1}
  - {type: InternalIP, address: "fd00:9::1"}
---
apiVersion: v1
kind: Node
metadata: {name: b}
spec: {podCIDRs: [10.0.2.0/24]}
status:
  addresses:
  - {type: InternalIP, address: 192.168.9.2}
  - {type: InternalIP, address: "fd00:9::2"}
---
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  nodeName: a
  initContainers:
  - {name: first, command: [sh, -c, "echo first >> $WHERE"], env: [{name: WHERE, value: LOG}]}
  containers:
  - {name: server, command: [myelin, lab, serve]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: a
  containers:
  - {name: sleep, command: [sleep, infinity]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: system}
spec:
  nodeName: a
  hostNetwork: true
  containers:
  - name: print
    command: [sh, -c, "echo '$(NAME) $(NOTHING) $$(NAME)' $ADDRESS; sleep infinity"]
    env:
    - {name: NAME, value: eve}
    - {name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  nodeName: b
  restartPolicy: Never
  containers:
  - {name: false, command: [sh, -c, "exit 3"]}
---
apiVersion: v1
kind: Pod
metadata: {name: image}
spec:
  nodeName: b
  containers:
  - {name: nginx, image: nginx}
---
apiVersion: v1
kind: Pod
metadata: {name: nowhere}
spec:
  nodeName: c
  containers: [{name: sleep, command: [sleep, infinity]}]
`

func manifestsFor(t *testing.T) string {
	return strings.ReplaceAll(strings.ReplaceAll(twoNodes, "name: false", "name: fails"), "LOG", t.TempDir()+"/log")
}

func TestUp(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, manifestsFor(t)))
	ctx := t.Context()
	run := func(p *Place, args ...string) string {
		t.Helper()
		out, err := p.Exec(ctx, args...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	a, client, server := l.Node("a"), l.Pod("client"), l.Pod("default/server")
	run(&a.Place, "ping", "-c1", "-W2", "192.168.9.2")
	run(&a.Place, "ping", "-c1", "-W2", "fd00:9::2")
	run(&a.Place, "ping", "-c1", "-W2", "198.51.100.1")
	run(&a.Place, "ping", "-c1", "-W2", "2001:db8:64::1")
	run(&l.World().Place, "ping", "-c1", "-W2", "192.168.9.1")
	run(&client.Place, "ping", "-c1", "-W2", server.IPv4().String())
	eventually(t, "curl", func() error {
		out, err := client.Exec(ctx, "curl", "-sS", "--noproxy", "*", fmt.Sprintf("http://%s:8080/path", server.IPv4()))
		if err == nil && (!strings.Contains(out, "server  server\n") ||
			!strings.Contains(out, "client  "+client.IPv4().String())) {
			return fmt.Errorf("answer %q", out)
		}
		return err
	})
	// The world has no route to pods: what leaves a node unmasqueraded is not answered.
	if out, err := client.Exec(ctx, "ping", "-c1", "-W1", "198.51.100.1"); err == nil {
		t.Errorf("the world answered a pod: %s", out)
	}
	for _, p := range []struct {
		pod, phase, message string
		code                int
	}{
		{"server", "Running", "", 0},
		{"client", "Running", "", 0},
		{"host", "Running", "", 0},
		{"once", "Failed", "", 3},
		{"image", "Running", "", 0},
	} {
		eventually(t, p.pod, func() error {
			s := l.Pod(p.pod).State()
			if s.Phase != p.phase || s.Message != p.message || s.Containers[len(s.Containers)-1].ExitCode != p.code {
				return fmt.Errorf("state %+v, want %+v", s, p)
			}
			return nil
		})
	}
	eventually(t, "output of pod host", func() error {
		want := "eve $(NOTHING) $(NAME) 192.168.9.1\n"
		if log, _ := os.ReadFile(l.Pod("host").logFile("print")); string(log) != want {
			return fmt.Errorf("log %q, want %q", log, want)
		}
		return nil
	})
}

func TestExec(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, manifestsFor(t)))
	_, err := l.Node("a").Exec(t.Context(), "sh", "-c", "echo why; exit 7")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.HasSuffix(err.Error(), "why") {
		t.Errorf("exit 7: error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := l.Pod("client").Exec(ctx, "sh", "-c", "sleep 60 & sleep 60"); err == nil ||
		time.Since(begin) > 5*time.Second {
		t.Errorf("command that outlives its context: %v after %v", err, time.Since(begin))
	}
	for name, want := range map[string]string{"x": `no pod "x", and no node`, "nowhere": `no pod "nowhere"`} {
		if _, err := l.Find(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("find %s: %v, want %q", name, err, want)
		}
	}
	if _, err := l.Node("x").Exec(t.Context(), "true"); err == nil {
		t.Error("exec on a node that is not there succeeds")
	}
	// Exec puts processes where the node's socket hooks see them.
	out, err := l.Node("b").Exec(t.Context(), "cat", "/proc/self/cgroup")
	if err != nil || !strings.Contains(out, "/myelin-lab/"+l.Name()+"/b\n") {
		t.Errorf("control group %q, %v", out, err)
	}
}

// TestParallel has labs of equal addresses beside each other.
func TestParallel(t *testing.T) {
	t.Parallel()
	all := []Options{testOptions(t, manifestsFor(t)), testOptions(t, manifestsFor(t)), testOptions(t, manifestsFor(t))}
	labs := make([]*Lab, len(all))
	var wg sync.WaitGroup
	for i, opts := range all {
		wg.Go(func() {
			var err error
			if labs[i], err = Up(t.Context(), opts); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	down(t, all[0])
	for _, l := range labs[1:] {
		if _, err := l.Node("a").Exec(t.Context(), "ping", "-c1", "-W2", "192.168.9.2"); err != nil {
			t.Errorf("lab beside one that went down: %v", err)
		}
	}
	if _, err := Up(t.Context(), all[1]); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("up of a lab that is up: %v", err)
	}
}

func TestWire(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, manifestsFor(t))
	opts.Fabric, opts.Underlay, opts.MTU, opts.InProcess = FabricWire, UnderlayIPv6, 9000, true
	l := up(t, opts)
	if _, err := l.Node("a").Exec(t.Context(), "ping", "-c1", "-W2", "-Mdo", "-s8900", "fd00:9::2"); err != nil {
		t.Error(err)
	}
	if _, err := l.Node("a").Exec(t.Context(), "ping", "-c1", "-W1", "192.168.9.2"); err == nil {
		t.Error("the IPv4 address is there, on an underlay of ipv6")
	}
	if l.World().Err() == nil {
		t.Error("a world on a direct wire")
	}
	data, err := os.ReadFile(l.path("manifests", "node__a.yaml"))
	if err != nil || strings.Contains(string(data), "192.168.9.1") {
		t.Errorf("agents are told of an address that is not there: %s %v", data, err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCrash ends, as kill -9 does, whatever has a part in a lab, then takes the lab down; the helper finds leftovers.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, lose := range []struct {
		what string
		act  func(l *Lab) error
	}{
		{"nothing", func(*Lab) error { return nil }},
		{"supervisor", func(l *Lab) error { return readPID(l.path("supervisor.pid")).signal(unix.SIGKILL) }},
		{"lab.json", func(l *Lab) error { return os.Remove(l.path("lab.json")) }},
		{"directory", func(l *Lab) error {
			if err := l.unmountAll(t.Context()); err != nil {
				return err
			}
			for os.RemoveAll(l.dir) != nil { // the supervisor writes meanwhile
			}
			return nil
		}},
		{"namespaces", func(l *Lab) error { return l.deleteAllNetns(t.Context()) }},
		{"half a namespace", func(l *Lab) error { return os.WriteFile(netnsPath(l.Name()+"-half"), nil, 0o444) }},
		{"control group of a process", func(l *Lab) error {
			// It leaves the lab's control group, as what a user starts by `ip netns exec` never was in it.
			_, err := l.Node("a").Exec(t.Context(), "sh", "-c",
				"echo 0 > "+string(l.cg.join("../../cgroup.procs"))+" && setsid sh -c 'sleep 3600; : "+l.Name()+
					"' > /dev/null 2>&1 &")
			return err
		}},
	} {
		t.Run(lose.what, func(t *testing.T) {
			opts := testOptions(t, manifestsFor(t))
			if err := lose.act(up(t, opts)); err != nil {
				t.Fatal(err)
			}
			if names, err := List(opts.Dir); err != nil || !slices.Contains(names, opts.Name) {
				t.Errorf("labs are %v, %v: %s is missing", names, err, opts.Name)
			}
			down(t, opts)
			down(t, opts) // twice is as good
		})
	}
}

// TestUpFails has Up fail at each step, and leave nothing.
func TestUpFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		change func(*Options)
		want   string
	}{
		{"manifests", func(o *Options) { o.Manifests = "/nonexistent" }, "no such file"},
		{"name", func(o *Options) { o.Name = "a-b" }, "lab name"},
		{"wire", func(o *Options) { o.Fabric = "string" }, "fabric"},
		{"agent", func(o *Options) { o.Agent, o.Values = o.Binary, map[string]any{"fail": true} }, "was told to fail"},
		{"pods", func(o *Options) { o.Conflist, o.Timeout = nil, time.Second }, "no CNI configuration in"},
		{"MTU", func(o *Options) { o.MTU = 100 }, "MTU 100"},
	} {
		t.Run(c.what, func(t *testing.T) {
			opts := testOptions(t, manifestsFor(t))
			broken := opts
			c.change(&broken)
			_, err := Up(t.Context(), broken)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			for _, left := range leftovers(opts) {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}
