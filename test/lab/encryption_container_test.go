package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"myelin/encryption"
	"myelin/encryption/userspace"
	"myelin/status"
)

// container is a program that starts another one as a container runtime does: as the first process of a PID namespace,
// whose end is that of all others. SIGTERM is passed on.
const container = `#!/bin/bash
setpriv --pdeathsig KILL unshare --pid --fork --kill-child=KILL --mount-proc --propagation slave -- %s "$@" &
trap 'read -r first _ < /proc/$!/task/$!/children; kill -TERM "$first"' TERM
wait $!; wait $!
`

// TestEncryptionContainer ends agents under load, each with all processes of its container. A process that the agent
// has started ends with it; one that the supervisor has started, in another container, is the same at the end, and
// nothing is lost.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ───────┐
//	│ a1 ⇄ b1                 │  │               │
//	│ a1 ⇄─ [supervisor, wg0]─┼──┼─[…, wg0] ⇄ a2 │
//	│ a1 ⇄─┐ as node1 [agent] │  │       [agent] │     [containers]
//	└──────┼──────────────────┘  └───────────────┘
//	═══════╧═ world ══════════════════════════════
func TestEncryptionContainer(t *testing.T) {
	if encryptionState() == status.OK {
		t.Skip("the kernel has WireGuard")
	}
	program := filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(program, fmt.Appendf(nil, container, filepath.Join(binDir(), "myelin")), 0o755))
	c := &contained{up(t, setup{mode: encryptionModes(wireGuard())[0], agent: program})}
	c.encrypted()
	c.endWithAgents()
	c.startSupervised()
	c.encrypted()

	before := c.processes()
	load := startLoad(c.cluster)
	for i := range fewer(rounds / 10) {
		for name, end := range map[string]func(node string) error{
			"kill -9": func(node string) error { return c.Node(node).KillAgent(t.Context()) },
			"restart": func(node string) error { return c.Node(node).StopAgent(t.Context()) },
		} {
			check(t, c.each(func(node string) error {
				if err := end(node); err != nil {
					return err
				}
				return c.Node(node).StartAgent(t.Context(), c.supervised())
			}))
			if err := load.settled(); err != nil {
				t.Fatalf("round %d, %s: %v", i, name, err)
			}
		}
	}
	if lost := load.stop(); lost.packets > 0 || lost.connections > 0 {
		t.Errorf("lost %+v", lost)
	}
	if after := c.processes(); after != before {
		t.Errorf("WireGuard's processes are %v, and were %v before agents ended", after, before)
	}
	c.says("Encryption", status.Fallback, "WireGuard, 1 peer")
	report, err := c.report()
	check(t, err)
	if why := report.Feature("Encryption").Why; !strings.Contains(why, "in a process in another container") {
		t.Errorf("status says %q of what encrypts", why)
	}
}

// contained are nodes whose agents are in containers.
type contained struct{ *cluster }

func (c *contained) each(do func(node string) error) error {
	var g errgroup.Group
	for _, node := range []string{"node1", "node2"} {
		g.Go(func() error { return do(node) })
	}
	return g.Wait()
}

// supervised are the agents' values.
func (*contained) supervised() map[string]any {
	return map[string]any{"myelin.wireguard.supervise": false}
}

// processes are those of both nodes.
func (c *contained) processes() (list [2]string) {
	c.t.Helper()
	for i, node := range []string{"node1", "node2"} {
		client := userspace.Client{RunDir: c.Node(node).RunDir()}
		about, err := client.About(encryption.DeviceName)
		check(c.t, err)
		list[i] = fmt.Sprintf("%d (%s)", about.PID, about.Instance())
	}
	return list
}

// endWithAgents ends the agents, and finds that the processes which they started have ended.
func (c *contained) endWithAgents() {
	c.t.Helper()
	check(c.t, c.each(func(node string) error { return c.Node(node).KillAgent(c.t.Context()) }))
	for _, node := range []string{"node1", "node2"} {
		client := userspace.Client{RunDir: c.Node(node).RunDir()}
		eventually(c.t, "the end of "+node+"'s process", 5*time.Second, func() error {
			if about, err := client.About(encryption.DeviceName); err == nil {
				return fmt.Errorf("process %d goes on", about.PID)
			}
			return nil
		})
	}
}

// startSupervised starts agents that start no processes, node1's before there is a supervisor, node2's after.
func (c *contained) startSupervised() {
	c.t.Helper()
	const none = "no supervisor answers"
	err := c.Node("node1").StartAgent(c.t.Context(), c.supervised())
	if err == nil || !strings.Contains(err.Error(), none) {
		c.t.Errorf("an agent without a supervisor starts with %v, want %q", err, none)
	}
	for _, node := range []string{"node1", "node2"} {
		c.supervise(node)
	}
	check(c.t, c.Node("node2").StartAgent(c.t.Context(), c.supervised()))
}

// supervise starts a supervisor, which ends with the test.
func (c *contained) supervise(name string) {
	c.t.Helper()
	node := c.Node(name)
	cmd := node.Command(c.t.Context(), filepath.Join(binDir(), "myelin"), "wireguard", "supervise", "--run-dir",
		node.RunDir())
	log, err := os.Create(filepath.Join(c.t.TempDir(), name)) // a pipe would last as long as the processes
	check(c.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	check(c.t, node.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	c.t.Cleanup(func() { endSupervisor(c.t, cmd, ended, log) })
}

func endSupervisor(t *testing.T, cmd *exec.Cmd, ended <-chan error, log *os.File) {
	t.Helper()
	_ = cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
	select {
	case <-ended:
	case <-time.After(patience(10 * time.Second)):
		t.Errorf("the supervisor, process %d, has not ended", cmd.Process.Pid)
		_ = cmd.Process.Kill()
	}
	if t.Failed() {
		text, err := os.ReadFile(log.Name())
		t.Logf("supervisor %d: %s %v", cmd.Process.Pid, text, err)
	}
	_ = log.Close()
}
