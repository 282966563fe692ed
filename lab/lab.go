// Package lab makes a cluster of network namespaces on one machine: a fabric, nodes with their agents, a world outside
// the cluster, and pods with processes in them, all from Kubernetes YAML.
//
// A lab is state on disk and in the kernel, not in a process: Up builds it and returns, Open finds it again, Down
// removes it, also when whatever built it has died half way. Everything a lab owns carries its name (namespaces,
// control groups, directories), so labs run beside each other, with equal addresses if need be, and Down needs nothing
// but the name. The machine's own network namespace is never touched.
package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Lab is one lab, built by Up or found by Open.
type Lab struct {
	opts  Options
	dir   string // <Options.Dir>/<name>
	cg    cgroup // <cgroup2 root>/myelin-lab/<name>
	state State
	log   *slog.Logger
	cache objectCache

	// The supervisor, where it runs in this process; mu lets one caller at a time start one.
	mu   sync.Mutex
	stop context.CancelFunc
	done sync.WaitGroup
}

// Open finds the lab of that name that an earlier Up left under dir ("" means DefaultDir). It returns an error that
// wraps os.ErrNotExist if there is none.
func Open(dir, name string, log *slog.Logger) (*Lab, error) {
	l, err := attach(Options{Name: name, Dir: dir, Log: log})
	if err != nil {
		return nil, err
	}
	err = readJSON(l.path("lab.json"), &l.state)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no lab %s: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open lab %s: %w", name, err)
	}
	l.opts = l.state.Options
	l.opts.Log = l.log
	l.opts.setDefaults() // for those that the file does not hold
	return l, nil
}

// attach gives a Lab its paths without asking whether it exists.
func attach(opts Options) (*Lab, error) {
	opts.setDefaults()
	if err := checkName(opts.Name); err != nil {
		return nil, err
	}
	root, err := cgroupRoot("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	return &Lab{
		opts: opts,
		dir:  filepath.Join(opts.Dir, opts.Name),
		cg:   root.join(cgroupParent, opts.Name),
		log:  opts.Log,
	}, nil
}

// List names the labs that exist under dir ("" means DefaultDir) or left a control group behind, sorted.
func List(dir string) ([]string, error) {
	if dir == "" {
		dir = DefaultDir
	}
	root, err := cgroupRoot("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range []string{dir, string(root.join(cgroupParent))} {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list labs: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && checkName(e.Name()) == nil && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.opts.Name }

// Dir is the lab's own directory.
func (l *Lab) Dir() string { return l.dir }

// Manifests is the directory of Kubernetes YAML that the agents read: the lab's copy.
func (l *Lab) Manifests() string { return l.path("manifests") }

// Nodes lists the lab's nodes in the order of their names.
func (l *Lab) Nodes() []*Node {
	var nodes []*Node
	for i := range l.state.Nodes {
		nodes = append(nodes, l.Node(l.state.Nodes[i].Name))
	}
	return nodes
}

// Node finds a node. For a name that the lab does not have, every method of the result fails with an error that says
// so.
func (l *Lab) Node(name string) *Node {
	n := &Node{Place: Place{lab: l, name: name, netns: l.nodeNetns(name), cg: l.cg.join(name)}}
	i := slices.IndexFunc(l.state.Nodes, func(s NodeState) bool { return s.Name == name })
	if i < 0 {
		n.err = fmt.Errorf("lab %s has no node %q", l.Name(), name)
		return n
	}
	n.state = l.state.Nodes[i]
	n.env = []string{"MYELIN_SOCKET=" + n.Socket(), DirVariable + "=" + l.Dir()}
	return n
}

// Pod finds a pod by "namespace/name", or by its name alone where only one namespace has it. For a pod that the lab
// does not have, every method of the result fails with an error that says so.
func (l *Lab) Pod(name string) *Pod {
	states, err := l.podStates()
	if err != nil {
		return &Pod{Place: Place{lab: l, name: name, err: err}}
	}
	var found []PodState
	for _, s := range states {
		if s.key() == name || s.Name == name {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return &Pod{Place: Place{lab: l, name: name, err: fmt.Errorf("lab %s has no pod %q", l.Name(), name)}}
	case 1:
		return l.podOf(found[0])
	}
	err = fmt.Errorf("pod %q is in more than one namespace: write %s or %s", name, found[0].key(), found[1].key())
	return &Pod{Place: Place{lab: l, name: name, err: err}}
}

func (l *Lab) podOf(s PodState) *Pod {
	return &Pod{Place: Place{
		lab: l, name: s.key(), netns: s.Netns, hosts: l.podHosts(s), cg: l.podCgroup(s.Node, s.Namespace, s.Name),
		vars: func() []string { return l.execEnv(s) },
	}, state: s}
}

// Pods lists the pods that the supervisor knows, by node, then namespace, then name.
func (l *Lab) Pods() ([]*Pod, error) {
	states, err := l.podStates()
	if err != nil {
		return nil, err
	}
	var pods []*Pod
	for _, s := range states {
		pods = append(pods, l.podOf(s))
	}
	return pods, nil
}

// World is the outside of the cluster: a namespace on the fabric with routes to the nodes and to nothing else.
// A lab on a direct wire has none; then every method of the result fails.
func (l *Lab) World() *World {
	w := &World{Place: Place{lab: l, name: "world", netns: l.worldNetns(), cg: l.cg.join("_world")},
		state: l.state.World}
	if len(l.state.World.Addresses) == 0 {
		w.err = fmt.Errorf("lab %s has no world: its nodes are on a direct wire", l.Name())
	}
	return w
}

// Find resolves what a user types: "world", a node, a pod, or a workload or Service that stands for one of its pods
// ("deployment/web"), in this order.
func (l *Lab) Find(name string) (*Place, error) {
	if name == "world" {
		w := l.World()
		return &w.Place, w.err
	}
	if n := l.Node(name); n.err == nil {
		return &n.Place, nil
	}
	p := l.findPod(name)
	if p.err != nil {
		return nil, fmt.Errorf("%w, and no node of that name", p.err)
	}
	return &p.Place, nil
}

func (l *Lab) path(elem ...string) string { return filepath.Join(append([]string{l.dir}, elem...)...) }

func (l *Lab) progress(format string, args ...any) {
	if l.opts.Progress != nil {
		l.opts.Progress(fmt.Sprintf(format, args...))
	}
}
