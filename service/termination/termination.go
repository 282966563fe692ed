// Package termination ends connected UDP sockets whose backend is gone.
package termination

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
	// minInterval is the shortest time between two scans of all sockets.
	minInterval = time.Second
	// settleTime is waited before a scan, so that it covers backends that are deleted together, and sockets that had
	// just selected one of them.
	settleTime = 100 * time.Millisecond
	// retryTime is when sockets are scanned again after an error.
	retryTime = 10 * time.Second
)

// Params are what a Terminator needs.
type Params struct {
	Log      *slog.Logger
	Datapath *bpf.Datapath
	// WaitInitialized waits until the backends of all Services are in the kernel; it returns false if ctx ends before.
	WaitInitialized func(ctx context.Context) bool
	// BackendGone receives after a UDP backend was deleted.
	BackendGone <-chan struct{}
	// Namespaces lists the paths of the network namespaces to scan besides that of the process.
	Namespaces func() []string
}

// Terminator ends connected UDP sockets whose backend is gone. Their application would otherwise go on sending, because
// nothing reports an error to it. It gets ECONNABORTED when it reads and EDESTADDRREQ when it writes, and connects
// again. Sockets that connected to the backend's own address are left alone.
type Terminator struct {
	params    Params
	destroyer *sockdiag.Destroyer // nil: sockets are destroyed over netlink

	mu    sync.Mutex
	state Status
}

// Status is what a Terminator can do and has done.
type Status struct {
	// Why says why no socket can be ended on this kernel; empty if sockets can be.
	Why string
	// Netlink says why sockets are listed and destroyed over netlink; empty if a BPF iterator does it by
	// bpf_sock_destroy.
	Netlink string
	// Problem is the error of the last scan.
	Problem string
	Ended   uint64 // sockets, since the agent was started
}

// New returns a Terminator that uses bpf_sock_destroy if the kernel has it, and otherwise netlink.
func New(p Params) *Terminator {
	t := &Terminator{params: p}
	var err error
	if t.destroyer, err = sockdiag.NewDestroyer(p.Datapath.Origins, p.Datapath.Backends); err == nil {
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

// Status returns the current status. It is safe for concurrent use.
func (t *Terminator) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Run scans sockets once when all Services are known, because the previous agent may have stopped before it did, and
// then after backends were deleted, at most once per second, until ctx ends.
func (t *Terminator) Run(ctx context.Context) error {
	defer t.close()
	if t.Status().Why != "" || !t.params.WaitInitialized(ctx) {
		return nil
	}
	pace := rate.NewLimiter(rate.Every(minInterval), 1)
	for {
		var retry <-chan time.Time
		if err := t.scan(); err != nil {
			retry = time.After(retryTime)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.params.BackendGone:
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

// scan ends sockets in all namespaces.
func (t *Terminator) scan() error {
	var errs []error
	ended := 0
	for _, path := range append([]string{""}, t.params.Namespaces()...) {
		n, err := t.scanNamespace(path)
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
		t.params.Log.Error("UDP sockets may stay connected to backends that are gone", "error", err)
	}
	if ended > 0 {
		t.params.Log.Info("ended UDP sockets whose backend is gone", "sockets", ended)
	}
	return err
}

// close unloads the program. No socket is ended afterwards.
func (t *Terminator) close() {
	if t.destroyer != nil {
		t.destroyer.Close()
	}
}

// scanNamespace ends sockets in a namespace and returns how many. There are none if the pod, and with it the namespace,
// is gone.
func (t *Terminator) scanNamespace(path string) (ended int, err error) {
	if t.destroyer == nil {
		return t.scanByNetlink(path)
	}
	if ended, err = t.destroyer.Destroy(path); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return ended, err
}

// scanByNetlink lists the sockets of a namespace and ends the stale ones.
func (t *Terminator) scanByNetlink(path string) (ended int, err error) {
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
		if err != nil && !errors.Is(err, unix.ENOENT) { // else it was closed in between
			errs = append(errs, fmt.Errorf("network namespace %q: %w", path, err))
		}
	}
	return ended, errors.Join(errs...)
}

// stale reports whether the socket was connected to a backend that is gone.
func (t *Terminator) stale(s sockdiag.Socket) (bool, error) {
	var (
		origin  bpf.DatapathOrigin
		backend bpf.DatapathBackend
	)
	peer := s.Peer()
	key := bpf.DatapathOriginKey{Cookie: s.Cookie(), Addr: bpf.Addr(peer.Addr()), Port: bpf.Port(peer.Port())}
	found, err := bpf.Get(t.params.Datapath.Origins, key, &origin)
	if err != nil || !found || origin.Backend == 0 {
		return false, err
	}
	exists, err := bpf.Get(t.params.Datapath.Backends, origin.Backend, &backend)
	return !exists, err
}
