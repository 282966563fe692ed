package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// worker makes one pod what the manifests want it to be. All of the pod's state changes go through it.
type worker struct {
	lab *Lab
	log *slog.Logger
	key string

	mu      sync.Mutex
	target  *corev1.Pod   // what the manifests want; nil: no such pod
	changed chan struct{} // closed when the target becomes another
	ended   bool          // run returns, whatever the target becomes
	state   *PodState     // what is there; nil: nothing
}

// want sets the target.
func (w *worker) want(pod *corev1.Pod) {
	if w.setTarget(pod) {
		w.update(func(s *PodState) { s.Terminating = terminating(pod) })
	}
}

// setTarget says whether the pod is to go on, and its state differs from what is wanted in whether it terminates.
func (w *worker) setTarget(pod *corev1.Pod) (differs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := (pod == nil) == (w.target == nil) && (pod == nil || specHash(pod) == specHash(w.target))
	w.target = pod
	if !same {
		close(w.changed)
		w.changed = make(chan struct{})
	}
	return pod != nil && w.state != nil && w.state.Terminating != terminating(pod)
}

// next returns the target, and a context that ends when it becomes another.
func (w *worker) next(ctx context.Context) (*corev1.Pod, context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	changed := w.changed
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return w.target, ctx, cancel
}

// run works until the pod is gone and not wanted, or ctx ends; then everything stays as it is.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		pod, round, cancel := w.next(ctx)
		if w.state != nil && (pod == nil || w.state.Hash != specHash(pod)) {
			w.retry(ctx, "remove", func() error { return w.teardown(ctx) })
		}
		if pod == nil {
			cancel()
			if w.end() {
				return
			}
			continue
		}
		w.runPod(round, pod)
		<-round.Done()
		cancel()
	}
}

// end makes the worker one that has ended, unless its pod is wanted again.
func (w *worker) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = w.target == nil
	return w.ended
}

// hasEnded reports whether another worker has to take over.
func (w *worker) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// retry calls fn until it succeeds or ctx ends, with pauses as for restarts.
func (w *worker) retry(ctx context.Context, verb string, fn func() error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := fn()
		if err == nil || ctx.Err() != nil {
			return
		}
		w.log.Warn("can't "+verb+" pod", "pod", w.key, "error", err)
		w.update(func(s *PodState) { s.Message = err.Error() })
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// runPod sets the pod up and runs its containers until they have ended or ctx does.
func (w *worker) runPod(ctx context.Context, pod *corev1.Pod) {
	w.retry(ctx, "start", func() error { return w.setup(ctx, pod) })
	if ctx.Err() != nil {
		return
	}
	if names := withoutCommand(pod); len(names) > 0 && !w.lab.standsIn() {
		w.update(func(s *PodState) {
			s.Message = fmt.Sprintf("container %s: image can't be pulled in the lab: give a command, e.g. [myelin, "+
				"lab, serve]",
				strings.Join(names, ", "))
		})
		return
	}
	if !w.runInit(ctx, pod) {
		return
	}
	codes := make([]int, len(pod.Spec.Containers))
	var wg sync.WaitGroup
	for i, c := range pod.Spec.Containers {
		wg.Go(func() { codes[i] = w.runContainer(ctx, pod, c, pod.Spec.RestartPolicy) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	w.update(func(s *PodState) {
		s.Phase = "Succeeded"
		if slices.ContainsFunc(codes, func(c int) bool { return c != 0 }) {
			s.Phase = "Failed"
		}
	})
}

// runInit runs the init containers one after another, and says whether the others may start.
func (w *worker) runInit(ctx context.Context, pod *corev1.Pod) bool {
	policy := pod.Spec.RestartPolicy
	if policy != corev1.RestartPolicyNever {
		policy = corev1.RestartPolicyOnFailure // Always is meant for the others
	}
	for _, c := range pod.Spec.InitContainers {
		code := w.runContainer(ctx, pod, c, policy)
		if ctx.Err() != nil {
			return false
		}
		if code != 0 {
			w.update(func(s *PodState) {
				s.Phase, s.Message = "Failed", fmt.Sprintf("init container %s ended with status %d", c.Name, code)
			})
			return false
		}
	}
	return true
}

// setup makes the pod's namespace and network, unless an earlier supervisor has. What a failed or cut-short attempt
// left is removed first, and the next one has another container ID, as kubelet does it.
func (w *worker) setup(ctx context.Context, pod *corev1.Pod) error {
	if w.state != nil && w.state.Ready {
		return nil
	}
	message := ""
	if w.state != nil {
		message = w.state.Message
		if err := w.teardown(ctx); err != nil {
			return err
		}
	}
	s := w.lab.newState(pod)
	s.Message = message
	if !s.HostNetwork {
		var err error
		if _, s.Conflist, err = w.lab.Node(s.Node).conflist(); err != nil {
			s.Message = err.Error()
		}
	}
	for _, c := range pod.Spec.InitContainers {
		s.Containers = append(s.Containers, ContainerState{Name: c.Name, Init: true})
	}
	for _, c := range pod.Spec.Containers {
		s.Containers = append(s.Containers, ContainerState{Name: c.Name})
	}
	w.mu.Lock()
	w.state = &s
	w.mu.Unlock()
	w.update(func(*PodState) {})
	if !s.HostNetwork && s.Conflist == nil {
		return errors.New(s.Message)
	}
	full := s
	if err := w.lab.addNetwork(ctx, &full); err != nil {
		return err
	}
	full.Started, full.Message = time.Now(), ""
	w.update(func(s *PodState) { *s = full })
	return nil
}

// teardown ends the pod's processes, asking first, and removes all that it has.
func (w *worker) teardown(ctx context.Context) error {
	s := w.snapshot()
	cg := w.lab.podCgroup(s.Node, s.Namespace, s.Name)
	w.mu.Lock()
	grace := w.lab.grace(w.target)
	w.mu.Unlock()
	cg.signal(unix.SIGTERM)
	for end := time.Now().Add(grace); len(cg.pids()) > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	if err := cg.clear(ctx); err != nil {
		return err
	}
	if err := w.lab.delNetwork(ctx, s); err != nil {
		return err
	}
	logs := filepath.Dir(w.lab.containerLog(s.Node, s.Namespace, s.Name, ""))
	for _, f := range []string{logs, w.lab.statusPath(s), w.lab.podStatePath(s.Namespace, s.Name)} {
		if err := os.RemoveAll(f); err != nil {
			return err
		}
	}
	w.mu.Lock()
	w.state = nil
	w.mu.Unlock()
	return nil
}

func (w *worker) snapshot() PodState {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == nil {
		return PodState{}
	}
	s := *w.state
	s.Containers = slices.Clone(s.Containers)
	return s
}

// update changes the state, and writes it and the Pod object that agents read.
func (w *worker) update(change func(*PodState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == nil {
		return
	}
	change(w.state)
	// The state last: a process that waits for it finds the object too.
	err := errors.Join(
		w.lab.writeStatus(*w.state),
		writeJSON(w.lab.podStatePath(w.state.Namespace, w.state.Name), w.state),
	)
	if err != nil {
		w.log.Error("can't write the state of a pod", "pod", w.key, "error", err)
	}
}

func (w *worker) container(name string) ContainerState {
	for _, c := range w.snapshot().Containers {
		if c.Name == name {
			return c
		}
	}
	return ContainerState{Name: name}
}

func (w *worker) updateContainer(name string, change func(*ContainerState)) {
	w.update(func(s *PodState) {
		for i := range s.Containers {
			if s.Containers[i].Name == name {
				change(&s.Containers[i])
			}
		}
		if s.Phase == "Pending" && !slices.ContainsFunc(s.Containers, untried) {
			s.Phase, s.Message = "Running", ""
		}
	})
}

// untried says whether a container has not even been tried to start.
func untried(c ContainerState) bool { return !c.Exited && c.Process.PID == 0 }

func (w *worker) started(container string, p Process) {
	w.updateContainer(container, func(c *ContainerState) {
		if !untried(*c) {
			c.Restarts, c.LastExitCode = c.Restarts+1, c.ExitCode
		}
		c.Process, c.Exited, c.ExitCode, c.Message = p, false, 0, ""
	})
}

func (w *worker) exited(container string, code int, message string) {
	w.updateContainer(container, func(c *ContainerState) { c.Exited, c.ExitCode, c.Message = true, code, message })
}
