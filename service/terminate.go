package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"myelin/bpf"
	"myelin/service/sockdiag"
)

const (
	// settleTime lets more backends go before sockets and flows are looked
	// through, and those that had just chosen one connect to it, or have a row.
	settleTime = 100 * time.Millisecond
	// retryTime is when namespaces are looked through again after an error.
	retryTime = 10 * time.Second
)

// Terminator ends connected UDP sockets whose backend has gone: nobody would
// tell them, and their application would send for ever. Instead it gets
// ECONNABORTED as it reads, EDESTADDRREQ as it writes, and connects again. Sockets that connected to the pod itself live on.
type Terminator struct {
	log        *slog.Logger
	kernel     *Kernel
	namespaces func() []string
	destroyer  *sockdiag.Destroyer // nil: by netlink

	mu    sync.Mutex
	state Termination
}

// Termination is what a Terminator can do and has done.
type Termination struct {
	// Why says why no socket can be ended on this kernel, empty if they can.
	Why string
	// Netlink says why sockets are looked at one by one over netlink, empty where
	// the kernel does it itself, by bpf_sock_destroy.
	Netlink string
	// Problem is what was wrong when sockets were looked through last.
	Problem string
	Ended   uint64 // sockets since the agent was started
}

// NewTerminator asks the kernel how it can end sockets: by a program of ours, or
// when told which. namespaces lists the paths of the network namespaces to look
// at beside that of the process.
func NewTerminator(log *slog.Logger, k *Kernel, namespaces func() []string) *Terminator {
	t := &Terminator{log: log, kernel: k, namespaces: namespaces}
	var err error
	if t.destroyer, err = sockdiag.NewDestroyer(k.datapath.Origins, k.datapath.Backends); err == nil {
		return t
	}
	t.state.Netlink = err.Error()
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.state.Netlink = "the kernel has no bpf_sock_destroy (6.5 or later has, with its own types)"
	}
	if err := sockdiag.Probe(); err != nil {
		t.state.Why = err.Error()
	}
	return t
}

// Status reports what there is to say; safe for concurrent use.
func (t *Terminator) Status() Termination {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Run looks through sockets once all Services are known, for an agent before us
// may not have come to that, and then whenever backends have gone, once a second
// at most, until ctx ends. The kernel of Services must be reconciled.
func (t *Terminator) Run(ctx context.Context) error {
	defer t.close()
	if t.Status().Why != "" || !t.kernel.known(ctx) {
		return nil
	}
	pace := rate.NewLimiter(rate.Every(sweepEvery), 1)
	for {
		var retry <-chan time.Time
		if err := t.look(); err != nil {
			retry = time.After(retryTime)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.kernel.gone:
		case <-retry:
		}
		if pace.Wait(ctx) != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleTime):
		}
	}
}

// look goes through the sockets of all namespaces.
func (t *Terminator) look() error {
	var errs []error
	ended := 0
	for _, path := range append([]string{""}, t.namespaces()...) {
		n, err := t.lookAt(path)
		ended += n
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	t.mu.Lock()
	fresh := problem != t.state.Problem
	t.state.Problem = problem
	t.state.Ended += uint64(ended)
	t.mu.Unlock()
	if fresh && problem != "" {
		t.log.Error("UDP sockets may stay with backends that have gone", "error", err)
	}
	if ended > 0 {
		t.log.Info("ended UDP sockets whose backend has gone", "sockets", ended)
	}
	return err
}

// close lets go of the program. Nothing is ended after it.
func (t *Terminator) close() {
	if t.destroyer != nil {
		t.destroyer.Close()
	}
}

// lookAt goes through the sockets of a namespace and returns how many it ended:
// none where the pod has gone, and its sockets with it.
func (t *Terminator) lookAt(path string) (ended int, err error) {
	if t.destroyer == nil {
		return t.tell(path)
	}
	if ended, err = t.destroyer.Destroy(path); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return ended, err
}

// tell lists the sockets of a namespace, and tells the kernel which to end.
func (t *Terminator) tell(path string) (ended int, err error) {
	n, err := sockdiag.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer n.Close()
	list, err := n.Connected()
	if err != nil {
		return 0, fmt.Errorf("network namespace %q: %w", path, err)
	}
	var errs []error
	for _, s := range list {
		stale, err := t.stale(s)
		if err == nil && stale {
			if err = n.Destroy(s); err == nil {
				ended++
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // closed meanwhile
			errs = append(errs, fmt.Errorf("network namespace %q: %w", path, err))
		}
	}
	return ended, errors.Join(errs...)
}

// stale reports whether the socket was sent to a backend that has gone.
func (t *Terminator) stale(s sockdiag.Socket) (bool, error) {
	var (
		asked bpf.DatapathOrigin
		b     bpf.DatapathBackend
	)
	peer := s.Peer()
	key := bpf.DatapathOriginKey{Cookie: s.Cookie(), Addr: bpf.Addr(peer.Addr()), Port: bpf.Port(peer.Port())}
	if translated, err := bpf.Get(t.kernel.datapath.Origins, key, &asked); err != nil || !translated || asked.Backend == 0 {
		return false, err
	}
	there, err := bpf.Get(t.kernel.datapath.Backends, asked.Backend, &b)
	return !there, err
}
