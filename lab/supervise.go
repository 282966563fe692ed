package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// rescan bounds how long a change stays unseen that the file system did not report.
const rescan = 2 * time.Second

// desired returns the Pods of the lab's manifests that are assigned to its nodes, by namespace/name.
func (l *Lab) desired() (map[string]*corev1.Pod, error) {
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	return l.desiredOf(objects)
}

func (l *Lab) desiredOf(objects []*object) (map[string]*corev1.Pod, error) {
	all, err := pods(objects)
	if err != nil {
		return nil, err
	}
	desired := map[string]*corev1.Pod{}
	for _, p := range all {
		if l.Node(p.Spec.NodeName).err == nil {
			desired[p.Namespace+"/"+p.Name] = p
		}
	}
	return desired, nil
}

// specHash tells specs apart: a pod with another one is replaced.
func specHash(pod *corev1.Pod) string {
	data, err := json.Marshal(pod.Spec)
	if err != nil {
		return err.Error() // the type holds nothing that can't be encoded
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Supervise makes the pods what the lab's manifests say, as kubelet does, until ctx ends. Pods then stay as they are,
// and the next Supervise adopts them. There is one at a time in a lab; a second one is an error.
func (l *Lab) Supervise(ctx context.Context) error {
	unlock, err := l.lockSupervisor()
	if err != nil {
		return err
	}
	defer unlock()
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	defer watch.Close()
	if err := watch.Add(l.Manifests()); err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	s := &supervisor{lab: l, log: l.log, watch: watch, workers: map[string]*worker{}}
	defer s.wg.Wait()
	if err := s.adopt(ctx); err != nil {
		return err
	}
	for {
		s.control()
		s.sync(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-watch.Events:
			drain(watch.Events)
		case err := <-watch.Errors:
			l.log.Warn("watch manifests", "error", err)
		case <-time.After(rescan):
		}
	}
}

// drain takes the events of one change together.
func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case <-events:
		case <-time.After(10 * time.Millisecond):
			return
		}
	}
}

// lockSupervisor takes the lock that says a supervisor runs, and leaves its process number in it.
func (l *Lab) lockSupervisor() (unlock func(), err error) {
	f, err := os.OpenFile(l.path("supervisor.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock supervisor: %w", err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return nil, errors.Join(fmt.Errorf("lock supervisor: %w", err), f.Close())
	}
	if err := writeJSON(l.path("supervisor.pid"), processOf(os.Getpid())); err != nil {
		return nil, errors.Join(fmt.Errorf("lock supervisor: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// supervised says whether a supervisor runs. It asks for the lock without taking it, which would be in the way of one
// that starts.
func (l *Lab) supervised() bool {
	f, err := os.Open(l.path("supervisor.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// supervisor has a worker per pod.
type supervisor struct {
	lab     *Lab
	log     *slog.Logger
	workers map[string]*worker
	wg      sync.WaitGroup
	problem string // the last one with the manifests, to log it once
	watch   *fsnotify.Watcher
	follows bool // the state of pods is watched too: something depends on it
}

// control makes what workloads and Services stand for, from when there are some.
func (s *supervisor) control() {
	objects, err := s.lab.objects()
	if err != nil {
		return // sync says so
	}
	if !s.follows && (isControlled(objects) || slices.ContainsFunc(objects, isHeadless)) {
		if err := s.watch.Add(s.lab.path("pods")); err != nil {
			s.log.Error("watch pods", "error", err)
			return
		}
		s.follows = true
	}
	s.watchKeys()
	if err := s.lab.publishKeys(); err != nil {
		s.log.Error("keys of nodes", "error", err)
	}
	if err := s.lab.control(); err != nil {
		s.log.Error("controllers", "error", err)
	}
	if err := s.lab.writeNames(); err != nil {
		s.log.Error("names of Services", "error", err)
	}
}

// adopt takes over the pods that an earlier supervisor left, wanted or not.
func (s *supervisor) adopt(ctx context.Context) error {
	states, err := s.lab.podStates()
	if err != nil {
		return err
	}
	desired, err := s.lab.desired()
	if err != nil {
		return err
	}
	for _, state := range states {
		s.start(ctx, state.key(), desired[state.key()], &state)
	}
	return nil
}

func (s *supervisor) start(ctx context.Context, key string, pod *corev1.Pod, state *PodState) {
	w := &worker{
		lab: s.lab, log: s.log, key: key,
		target: pod, state: state,
		changed: make(chan struct{}),
	}
	s.workers[key] = w
	s.wg.Go(func() { w.run(ctx) })
}

// sync tells the workers what the manifests want. Manifests that can't be read change nothing.
func (s *supervisor) sync(ctx context.Context) {
	desired, err := s.lab.desired()
	if err != nil {
		if err.Error() != s.problem {
			s.problem = err.Error()
			s.log.Error("manifests are not applied", "error", err)
		}
		return
	}
	s.problem = ""
	for key, w := range s.workers {
		w.want(desired[key])
		if w.hasEnded() { // then it has not heard of what is wanted now
			delete(s.workers, key)
		}
	}
	for key := range maps.Keys(desired) {
		if s.workers[key] == nil {
			s.start(ctx, key, desired[key], nil)
		}
	}
}

// ensureSupervisor starts the lab's supervisor unless one runs, and returns when it does.
func (l *Lab) ensureSupervisor() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.supervised() {
		return nil
	}
	ended := make(chan error, 1)
	if l.opts.InProcess || l.opts.Binary == "" {
		ctx, cancel := context.WithCancel(context.Background())
		l.stop = cancel
		l.done.Go(func() { ended <- l.Supervise(ctx) })
	} else {
		d := daemon{
			argv: []string{l.opts.Binary, "lab", "supervise", "--dir", l.opts.Dir, "--name", l.opts.Name},
			env:  l.environment(),
			log:  l.path("supervisor.log"),
			cg:   l.cg.join("_supervisor"),
		}
		_, exit, err := d.start("")
		if err != nil {
			return err
		}
		go func() {
			ended <- fmt.Errorf("it ended: %v: %s", <-exit, lastLines(d.log, 5))
		}()
	}
	for range 500 {
		if l.supervised() {
			return nil
		}
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("it was stopped")
			}
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("it does not take its lock: %s", strings.TrimSpace(lastLines(l.path("supervisor.log"), 5)))
}
