package lab

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Place is where commands run: a node, a pod or the world; a network namespace and a control group.
type Place struct {
	lab   *Lab
	name  string
	netns string // its name under /run/netns
	cg    cgroup
	hosts string          // the file that is /etc/hosts there, the machine's if empty
	vars  func() []string // what its commands get of a pod's Services and first container; nil: nothing
	env   []string        // what its commands get beside the lab's environment
	err   error           // why there is no such place
}

// Name is a node's name, "namespace/name" of a pod, or "world".
func (p *Place) Name() string { return p.name }

// Err says why the place does not exist, nil if it does.
func (p *Place) Err() error { return p.err }

// NetnsName is the name that `ip netns` knows.
func (p *Place) NetnsName() string { return p.netns }

// Cgroup is the directory of the control group.
func (p *Place) Cgroup() string { return string(p.cg) }

// Do runs fn on a thread in the namespace. Sockets that fn opens on its own goroutine belong there; goroutines that fn
// starts run elsewhere. It returns what fn returns.
func (p *Place) Do(fn func() error) error {
	if p.err != nil {
		return p.err
	}
	return enter(p.netns, fn)
}

// Command prepares a process for Start: `myelin` as the program is the lab's binary, and on a node asks the node's
// agent.
func (p *Place) Command(ctx context.Context, args ...string) *exec.Cmd {
	program := args[0]
	if program == "myelin" && p.lab.opts.Binary != "" {
		program = p.lab.opts.Binary
	}
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	cmd.Env = append(p.lab.environment(), p.env...)
	if p.vars != nil {
		cmd.Env = append(cmd.Env, p.vars()...)
	}
	return cmd
}

// Start starts cmd in the place. The caller waits for it; Down kills it if it is there still.
func (p *Place) Start(cmd *exec.Cmd) error {
	if p.err != nil {
		return p.err
	}
	return startIn(p.netns, p.hosts, p.cg, cmd)
}

// Exec runs a command in the place until it ends and returns what it wrote to standard output and error. If its status
// is not 0, the error wraps an *exec.ExitError. When ctx ends, the command and what it started are killed.
func (p *Place) Exec(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := p.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := p.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("exec %s in %s: %w: %s", strings.Join(args, " "), p.name, err,
			strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Node is one node of a lab.
type Node struct {
	Place
	state NodeState
}

// Addrs lists the node's addresses on the fabric, as in its Node object.
func (n *Node) Addrs() []netip.Addr { return slices.Clone(n.state.Addresses) }

// PodCIDRs lists the ranges that the node's pods get their addresses from.
func (n *Node) PodCIDRs() []netip.Prefix { return slices.Clone(n.state.PodCIDRs) }

// Dir is the node's directory: agent.yaml, agent.log, run/, bpf/, cni/, pods/.
func (n *Node) Dir() string { return n.lab.path("nodes", n.name) }

// RunDir is the agent's run directory, which holds its socket.
func (n *Node) RunDir() string { return n.path("run") }

// Socket is the agent's API socket.
func (n *Node) Socket() string { return n.path("run", "myelin.sock") }

// BPFRoot is the node's own BPF file system.
func (n *Node) BPFRoot() string { return n.path("bpf") }

func (n *Node) path(elem ...string) string {
	return n.lab.path(append([]string{"nodes", n.name}, elem...)...)
}

// Pod is one pod of a lab, as it was when it was looked up.
type Pod struct {
	Place
	state PodState
}

// State is what the supervisor knew of the pod.
func (p *Pod) State() PodState { return p.state }

// Addrs lists the pod's addresses: what the CNI plugin returned, or its node's if the pod has hostNetwork.
func (p *Pod) Addrs() []netip.Addr { return slices.Clone(p.state.Addresses) }

// IPv4 is the pod's IPv4 address, invalid if it has none.
func (p *Pod) IPv4() netip.Addr { return first(p.state.Addresses, netip.Addr.Is4) }

// IPv6 is the pod's IPv6 address, invalid if it has none.
func (p *Pod) IPv6() netip.Addr { return first(p.state.Addresses, netip.Addr.Is6) }

// logFile holds what a container wrote.
func (p *Pod) logFile(container string) string {
	return p.lab.containerLog(p.state.Node, p.state.Namespace, p.state.Name, container)
}

// World is the outside of the cluster.
type World struct {
	Place
	state WorldState
}

// Outside lists the world's addresses that are on no node's subnet: a node reaches them by its default route.
func (w *World) Outside() []netip.Addr { return slices.Clone(w.state.Outside) }

func first(addrs []netip.Addr, is func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(addrs, is); i >= 0 {
		return addrs[i]
	}
	return netip.Addr{}
}

// environment is what processes of the lab get: the caller's, with the lab's own programs first in PATH.
func (l *Lab) environment() []string {
	env := make([]string, 0, len(l.opts.Env)+1)
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, v := range l.opts.Env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
			continue
		}
		env = append(env, v)
	}
	return append(env, "PATH="+l.path("bin")+":"+path)
}
