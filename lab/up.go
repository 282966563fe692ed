package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Up builds a lab from the Node objects of the manifests, starts the agents and the pods, and returns when all pods
// that are assigned to its nodes run, have ended, or can't start for a reason that waiting does not cure (State of the
// pod has it). If it fails, what it built is removed again, unless KeepOnFailure is set.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	l, err := attach(opts)
	if err != nil {
		return nil, err
	}
	if err := l.opts.check(); err != nil {
		return nil, err
	}
	objects, err := l.plan()
	if err != nil {
		return nil, err
	}
	unlock, err := l.claim()
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, l.opts.Timeout)
	defer cancel()
	if err := l.build(ctx, objects); err != nil {
		err = fmt.Errorf("lab %s: %w", l.Name(), err)
		if l.opts.KeepOnFailure {
			return nil, err
		}
		return nil, errors.Join(err, l.remove(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// plan reads the manifests and decides everything that lab.json holds.
func (l *Lab) plan() ([]*object, error) {
	for _, f := range []*string{&l.opts.Binary, &l.opts.Agent, &l.opts.CNIPlugin, &l.opts.Dir, &l.opts.Config} {
		if *f == "" {
			continue
		}
		// Processes of the lab run elsewhere than the caller.
		abs, err := filepath.Abs(*f)
		if err != nil {
			return nil, err
		}
		*f = abs
	}
	l.dir = filepath.Join(l.opts.Dir, l.opts.Name)
	objects, err := readAll(l.opts.Stdin, append([]string{l.opts.Manifests}, l.opts.More...)...)
	if err != nil {
		return nil, err
	}
	if err := checkWorkloads(objects); err != nil {
		return nil, err
	}
	nodes, err := planNodes(objects, l.opts.Underlay)
	if err != nil {
		return nil, err
	}
	l.state = State{Options: l.opts, Created: time.Now(), Nodes: nodes}
	switch {
	case len(nodes) == 0:
		return nil, fmt.Errorf("read manifests: no Node in %s", l.opts.Manifests)
	case l.opts.Fabric == FabricWire && len(nodes) != 2:
		return nil, fmt.Errorf("a direct wire joins two nodes, not %d", len(nodes))
	case l.opts.Fabric == FabricWire: // has no world
	default:
		if l.state.World, err = planWorld(nodes, l.opts.Outside); err != nil {
			return nil, err
		}
	}
	return objects, l.complete(objects, nil)
}

// claim takes the lab's name, and the lock that Down waits for.
func (l *Lab) claim() (unlock func(), err error) {
	// Another lab that goes down removes the directories above when they are empty: then once more.
	for range 10 {
		if err = l.cg.create(); err != nil {
			continue
		}
		if err = os.MkdirAll(l.opts.Dir, 0o755); err != nil {
			break
		}
		if err = os.Mkdir(l.dir, 0o755); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("lab %s exists: take it down first", l.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", l.Name(), err)
	}
	return l.lock(unix.LOCK_EX | unix.LOCK_NB)
}

// lock takes the lab's lock. A process that dies loses it.
func (l *Lab) lock(how int) (unlock func(), err error) {
	f, err := os.OpenFile(l.path("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock lab %s: %w", l.Name(), err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock lab %s: %w", l.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (l *Lab) build(ctx context.Context, objects []*object) error {
	steps := []struct {
		title string
		run   func() error
	}{
		{"copy manifests", func() error { return l.writeAll(objects) }},
		{l.fabricTitle(), func() error {
			if err := shareNetnsDir(); err != nil {
				return err
			}
			return l.createFabric()
		}},
		{"mount a BPF file system for each node", l.mountAll},
		{"start the echo server of the world", l.startWorld},
		{l.agentsTitle(), func() error { return l.startAgents(ctx) }},
		{"start pods", func() error { return l.wait(ctx) }},
	}
	for _, s := range steps {
		if s.title == "" {
			continue
		}
		l.progress("%s", s.title)
		if err := s.run(); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	return nil
}

func (l *Lab) fabricTitle() string {
	var names []string
	for _, n := range l.state.Nodes {
		names = append(names, n.Name)
	}
	return fmt.Sprintf("make nodes %s on a %s, MTU %d", strings.Join(names, ", "), l.opts.Fabric, l.opts.MTU)
}

// agentsTitle is empty, and the step is left out, in a lab without agents.
func (l *Lab) agentsTitle() string {
	if l.opts.Agent == "" {
		return ""
	}
	return "start agents"
}

// writeAll makes the lab's directories, its copy of the manifests, and lab.json last.
func (l *Lab) writeAll(objects []*object) error {
	dirs := []string{"manifests/status", "pods", "bin"}
	for _, n := range l.state.Nodes {
		for _, d := range []string{"run", "bpf", "cni/net.d", "cni/bin", "cni/cache", "pods"} {
			dirs = append(dirs, filepath.Join("nodes", n.Name, d))
		}
	}
	for _, d := range dirs {
		if err := os.MkdirAll(l.path(d), 0o755); err != nil {
			return err
		}
	}
	if l.opts.Binary != "" {
		if err := os.Symlink(l.opts.Binary, l.path("bin", "myelin")); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes() {
		if err := n.cg.create(); err != nil {
			return err
		}
		if err := n.writeCNI(); err != nil {
			return err
		}
	}
	for _, o := range objects {
		if err := writeFile(l.path("manifests", o.fileName()), o.data); err != nil {
			return err
		}
	}
	return writeJSON(l.path("lab.json"), l.state)
}

// writeCNI puts the plugin, and the configuration if one was given, where libcni looks for them.
func (n *Node) writeCNI() error {
	if plugin := n.lab.opts.CNIPlugin; plugin != "" {
		if err := os.Symlink(plugin, n.path("cni", "bin", filepath.Base(plugin))); err != nil {
			return err
		}
	}
	if n.lab.opts.Conflist == nil {
		return nil
	}
	return writeFile(n.path("cni", "net.d", "10-lab.conflist"), n.lab.opts.Conflist)
}

func (l *Lab) mountAll() error {
	for _, n := range l.Nodes() {
		if err := unix.Mount("bpf", n.BPFRoot(), "bpf", 0, "mode=0700"); err != nil {
			return fmt.Errorf("mount %s: %w", n.BPFRoot(), err)
		}
	}
	return nil
}

// startWorld runs the echo server on the ports that it has by default.
func (l *Lab) startWorld() error {
	w := l.World()
	if w.err != nil || l.opts.Binary == "" {
		return nil
	}
	d := daemon{
		argv: []string{l.opts.Binary, "lab", "serve"},
		env:  append(l.environment(), "HOSTNAME=world"),
		log:  l.path("world.log"),
		cg:   w.cg,
	}
	_, _, err := d.start(w.netns)
	return err
}

// wait returns when all pods are settled (see Up), or ctx ends; then the error names those that are not. It starts the
// supervisor if that has died.
func (l *Lab) wait(ctx context.Context) error {
	for {
		if err := l.ensureSupervisor(); err != nil {
			return fmt.Errorf("start the supervisor of pods: %w", err)
		}
		missing, err := l.unsettled()
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), strings.Join(missing, "; "))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unsettled names the pods that do not yet run as the manifests want, with what is known of why.
func (l *Lab) unsettled() ([]string, error) {
	// One reading for all questions, and states after it: controllers go on meanwhile.
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	desired, err := l.desiredOf(objects)
	if err != nil {
		return nil, err
	}
	states, err := l.podStates()
	if err != nil {
		return nil, err
	}
	var missing []string
	if isControlled(objects) {
		if plan := l.clusterOf(objects, states).Plan(); !plan.Empty() {
			missing = append(missing, "controllers are not done")
		}
	}
	have := map[string]PodState{}
	for _, s := range states {
		have[s.key()] = s
		if desired[s.key()] == nil {
			missing = append(missing, fmt.Sprintf("pod %s is not deleted: %s", s.key(), s.Message))
		}
	}
	for key, pod := range desired {
		s, ok := have[key]
		switch {
		case !ok:
			missing = append(missing, fmt.Sprintf("pod %s is not created", key))
		case s.Hash != specHash(pod) || s.Terminating != terminating(pod) || !s.settled():
			missing = append(missing, fmt.Sprintf("pod %s is %s: %s", key, s.Phase, s.Message))
		}
	}
	return missing, nil
}
