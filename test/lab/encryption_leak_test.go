package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/status"
)

// TestEncryptionLeaks captures on the fabric while every path between nodes is used, and keys are rotated, an agent and
// a process are killed, and a node leaves, joins and reboots, with its key and without it. In strict mode no frame has
// what pods send or receive in plain text, and all paths work again after each step. Without encryption each path is
// found in the capture, and what nodes send each other always.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐  ┌─ node3 ─────┐
//	│ a1  b1      │  │ a2  b2      │  │ a3  b3      │    leaves, joins, reboots
//	└──────┬──────┘  └──────┬──────┘  └──────┬──────┘
//	═══════╧═══ capture ════╧════════════════╧═══════ world
func TestEncryptionLeaks(t *testing.T) {
	leaked, ran := 0, false
	for _, m := range leakModes(t) {
		t.Run(m.name, func(t *testing.T) {
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			l := &leaks{cluster: up(t, setup{mode: m, nodes: 3, values: perPacket()})}
			l.apply("services", l.outsideYAML("web", webService, "", "a2"))
			l.tap = l.keepingTap(l.note, marker("pod"), marker("node"), marker("client"))
			if m.name == "off" {
				l.findsAll()
				return
			}
			l.tap.add("world", l.end("world"))
			l.run()
			leaked, ran = leaked+l.leaked, true
		})
	}
	if ran {
		name := "encrypt/leaked_packets" // by a process
		if encryptionState() == status.OK {
			name = "encrypt/vm_leaked_packets"
		}
		record(t, result{name, float64(leaked), "packets"})
	}
}

// leakModes are strict modes, and one without encryption.
func leakModes(t *testing.T) []mode {
	modes := []mode{{"off", map[string]any{"autoDirectNodeRoutes": true}, 0}}
	wireguard, ipsec := encryptionModes(wireGuard()), encryptionModes(byIPsec(t))
	for _, m := range []mode{wireguard[4], ipsec[4]} {
		m.name = m.values["encryption.type"].(string)
		modes = append(modes, m)
	}
	if !testing.Short() {
		m := wireguard[3]
		strict := maps.Clone(wireguard[4].values)
		delete(strict, "autoDirectNodeRoutes")
		maps.Copy(strict, m.values)
		modes = append(modes, mode{"wireguard " + m.name, strict, m.tunnel})
	}
	return modes
}

// leaks is a cluster whose fabric is captured. Texts 0, 1 and 2 of the tap are those of pods, of nodes, and of clients
// outside.
type leaks struct {
	*cluster
	tap    *tap
	leaked int

	mu    sync.Mutex
	plain []string // what the first frames of pods in plain text were
}

// note keeps what frames of pods in plain text were.
func (l *leaks) note(place string, frame []byte) {
	if !bytes.Contains(frame, marker("pod")) {
		return
	}
	src, dst, proto, rest := outer(frame)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.plain) < 20 {
		l.plain = append(l.plain, fmt.Sprintf("%s at %s: %s→%s, protocol %d, %x", time.Now().Format("15:04:05.000"),
			place, src, dst, proto, rest[:8]))
	}
}

// leak fails the test if there are more frames in plain text than before.
func (l *leaks) leak(step string) {
	l.t.Helper()
	n := l.tap.seen(0) + l.tap.seenAt("node2", 2)
	if n == l.leaked {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Errorf("%s: %d frames have what pods sent in plain text, the first are\n%s", step, n-l.leaked,
		strings.Join(l.plain, "\n"))
	l.leaked, l.plain = n, nil
}

// findsAll: without encryption, the capture finds each path.
func (l *leaks) findsAll() {
	for _, f := range l.stack.families {
		for _, p := range l.pathsOf(f, true) {
			before := l.tap.seen(0)
			eventually(l.t, p.name, 10*time.Second, func() error { return p.send(marker("pod")) })
			eventually(l.t, fmt.Sprintf("the capture has IPv%d %s", f, p.name), 5*time.Second, func() error {
				if l.tap.seen(0) == before {
					return errors.New("it has not")
				}
				return nil
			})
		}
	}
	l.tap.end()
}

func (l *leaks) run() {
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	pods, nodes := []string{"a1", "a2", "a3"}, []string{"node1", "node2"}
	for _, from := range pods[:2] {
		l.whisper(ctx, from, marker("pod"), append(pods, nodes...)...)
	}
	for _, from := range nodes {
		l.whisper(ctx, from, marker("pod"), pods...)
	}
	third := l.whispers3(ctx)
	for _, step := range l.steps(third) {
		begin := time.Now()
		l.t.Logf("%s: begins at %s", step.name, begin.Format("15:04:05.000"))
		step.do()
		done := time.Since(begin)
		l.worksAfter(step.name, !step.left)
		l.t.Logf("%s: %s, and until all paths were used %s", step.name, done.Round(100*time.Millisecond),
			(time.Since(begin) - done).Round(100*time.Millisecond))
	}
	cancel()
	l.tap.end()
	l.leak("end")
}

// leakStep is something that happens to a cluster whose fabric is captured.
type leakStep struct {
	name string
	do   func()
	left bool // node3 is not there afterwards
}

// steps are what happens; third ends what a3 sends. In short mode an agent is killed while a node joins, so that both
// agents start at once, and a node reboots once: with its key, as without one it joins.
func (l *leaks) steps(third func()) []leakStep {
	start, rotation := leakStep{"start", func() {}, false}, leakStep{"rotation", l.rotatesKey, false}
	process := leakStep{"kill -9 of a process", l.killsProcess, false}
	leaves := leakStep{"a node leaves", func() { third(); l.leaves() }, true}
	reboots := leakStep{"a node reboots with its key", func() { l.reboots(l.whispers3(l.t.Context()), false) }, false}
	if testing.Short() {
		joins := leakStep{"a node joins, kill -9 of an agent", func() { l.joins(l.killsAgent) }, false}
		return []leakStep{start, rotation, process, leaves, joins, reboots}
	}
	return []leakStep{
		start, rotation,
		{"kill -9 of an agent", func() { check(l.t, l.killsAgent()) }, false},
		process, leaves,
		{"a node joins", func() { l.joins(func() error { return nil }) }, false},
		reboots,
		{"a node reboots without its key", func() { l.reboots(l.whispers3(l.t.Context()), true) }, false},
	}
}

// whispers3 has a3 send until it is told to stop.
func (l *leaks) whispers3(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	l.whisper(ctx, "a3", marker("pod"), "a1", "a2", "node1", "node2")
	return stop
}

// worksAfter waits until all paths work, looks at what was captured so far, and that the capture finds plain text.
func (l *leaks) worksAfter(step string, third bool) {
	l.t.Helper()
	for _, f := range l.stack.families {
		for _, p := range l.pathsOf(f, third) {
			l.works(step, f, p, marker("pod"))
		}
		for _, p := range l.clientPaths(f) {
			l.works(step, f, p, marker("client"))
		}
	}
	before := l.tap.seenAt("node1", 1)
	l.errorf(4, "node1→node2", l.talk("node1", "node2", 4, marker("node")))
	eventually(l.t, "the capture has what nodes send each other", 5*time.Second, func() error {
		if l.tap.seenAt("node1", 1) == before {
			return errors.New("it has not")
		}
		return nil
	})
	l.leak(step)
}

// works waits until a path works, and prints what was lost until it did.
func (l *leaks) works(step string, f int, p path, text []byte) {
	l.t.Helper()
	what, begin := fmt.Sprintf("after %s: IPv%d %s", step, f, p.name), time.Now()
	eventually(l.t, what, time.Minute, func() error {
		err := p.send(text)
		if err != nil {
			l.t.Logf("%s, after %s: %v", what, time.Since(begin).Round(time.Millisecond), err)
		}
		return err
	})
	if took := time.Since(begin); took > patience(time.Second) {
		l.t.Logf("%s: took %s", what, took.Round(time.Millisecond))
	}
}

// clientPaths are those of clients outside: what they send is in plain text up to node1, and not between nodes.
func (l *leaks) clientPaths(f int) []path {
	return []path{{"world→node port of node1→a2", func(text []byte) error {
		dst := nodeAddr(1, f)
		return l.talkBy("world", "a2", f, at(dst, 30500+webService), at(dst, 30000+webService), text)
	}}, {"a1→world", func(text []byte) error { return l.talk("a1", "world", f, text) }}}
}

func (l *leaks) byIPsec() bool { return l.mode.values["encryption.type"] == "ipsec" }

func (l *leaks) rotatesKey() {
	if !l.byIPsec() {
		l.rotate("node1")
		return
	}
	writeKey(l.t, l.mode.values["encryption.ipsec.mountPath"].(string), 4)
	l.usesKey(4)
}

// killsAgent kills an agent, and starts it again a second later.
func (l *leaks) killsAgent() error {
	node := l.Node("node2")
	if err := node.KillAgent(l.t.Context()); err != nil {
		return err
	}
	time.Sleep(time.Second)
	return node.StartAgent(l.t.Context(), nil)
}

// killsProcess kills the process that encrypts, where there is one.
func (l *leaks) killsProcess() {
	before, found := strings.CutPrefix(l.encryptedBy0(), "in process ")
	if !found {
		return
	}
	pid, err := strconv.Atoi(before)
	check(l.t, err)
	process, err := os.FindProcess(pid)
	check(l.t, err)
	check(l.t, process.Kill())
	eventually(l.t, "another process encrypts", 10*time.Second, func() error {
		if now := l.encryptedBy0(); now == "in process "+before || !strings.HasPrefix(now, "in process ") {
			return errors.New(now)
		}
		return nil
	})
}

// encryptedBy0 is encryptedBy, empty with IPsec.
func (l *leaks) encryptedBy0() string {
	if l.byIPsec() {
		return ""
	}
	return l.encryptedBy()
}

// leaves has node3 go: others remove its peer, or its states and policies.
func (l *leaks) leaves() {
	node := l.Node("node3")
	for _, pod := range []string{"a3", "b3"} {
		check(l.t, l.DeletePod(l.t.Context(), "default/"+pod))
	}
	check(l.t, node.StopAgent(l.t.Context()))
	file, _ := l.nodeFile("node3")
	check(l.t, os.Remove(file))
	for _, n := range []string{"node1", "node2"} {
		eventually(l.t, n+" has nothing of node3", 10*time.Second, func() error {
			if rows, err := l.cli(n, "encrypt", "status"); err != nil || strings.Contains(rows, "node3") {
				return fmt.Errorf("it has %s: %w", rows, errOr(err, "a row"))
			}
			if !l.byIPsec() {
				if keys := l.peerKeys(n); len(keys) != 1 {
					return fmt.Errorf("its device has peers %v", keys)
				}
				return nil
			}
			objects := l.ip(n, "xfrm", "state") + l.ip(n, "xfrm", "policy")
			for _, a := range l.Node("node3").Addrs() {
				if strings.Contains(objects, " "+a.String()+" ") || strings.Contains(objects, " "+a.String()+"\n") {
					return fmt.Errorf("%s is in %s", a, objects)
				}
			}
			return nil
		})
	}
}

// joins has a machine without anything join as node3. Others know its Node before it has a key. It gets pods when its
// agent runs and what happens meanwhile is over.
func (l *leaks) joins(meanwhile func() error) {
	done := make(chan error, 1)
	go func() { done <- meanwhile() }()
	l.boots(true)
	check(l.t, replaceFile(filepath.Join(l.Manifests(), "node__node3.yaml"), l.nodeYAML(3)))
	time.Sleep(time.Second)
	check(l.t, l.Node("node3").StartAgent(l.t.Context(), nil))
	check(l.t, <-done)
	l.apply("pods", podYAML("a3", 3)+"---\n"+podYAML("b3", 3))
}

// reboots has node3 boot again, without its key if that is in memory.
func (l *leaks) reboots(stop func(), keyless bool) {
	node := l.Node("node3")
	check(l.t, node.KillAgent(l.t.Context()))
	stop()
	l.boots(keyless)
	time.Sleep(time.Second)
	check(l.t, node.StartAgent(l.t.Context(), nil))
	for _, pod := range []string{"a3", "b3"} {
		check(l.t, l.DeletePod(l.t.Context(), "default/"+pod))
	}
	l.apply("pods", podYAML("a3", 3)+"---\n"+podYAML("b3", 3))
}

// boots has node3, whose agent does not run, lose devices, programs, routes and keys in the kernel; all: files, too.
func (l *leaks) boots(all bool) {
	l.t.Helper()
	const script = `ip link set eth0 down
for d in $(ip -o link | sed 's/^[0-9]*: *\([^:@]*\).*/\1/'); do
	case $d in lo|eth0) ;; *) ip link delete "$d" 2>/dev/null ;; esac
done
for f in -4 -6; do ip $f route flush type unreachable; done
ip xfrm state flush; ip xfrm policy flush; true`
	n, mac := l.Node("node3"), l.eth0("node3").HardwareAddr
	if out, err := l.shellIn("node3", script); err != nil {
		l.t.Fatalf("node3 loses its devices: %v: %s", err, out)
	}
	check(l.t, os.RemoveAll(filepath.Join(n.BPFRoot(), "myelin")))
	if all {
		files, err := filepath.Glob(filepath.Join(n.RunDir(), "*"))
		check(l.t, err)
		for _, file := range files {
			check(l.t, os.RemoveAll(file))
		}
	}
	l.replug("node3", mac)
	l.tap.add("node3", n)
	const forward = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"
	if out, err := l.shellIn("node3", forward); err != nil { // as on nodes of Kubernetes
		l.t.Fatalf("node3 forwards: %v: %s", err, out)
	}
}
