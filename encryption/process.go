package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/agent/feature"
	"myelin/encryption/userspace"
)

// queueLength is how many packets or segments wait for a process: for some ten milliseconds of streams, in which it may
// not run. The kernel's 500 are for slower devices; more would let pods fill more of the kernel's memory.
const queueLength = 2000

// processes are the processes that are WireGuard devices where the kernel has none, as this agent has found or started
// them.
type processes struct {
	runDir    string
	logFormat string
	supervise bool // this agent starts them; else userspace.Supervise does
	log       *slog.Logger
	client    userspace.Client
	closed    chan struct{} // by close

	mu       sync.Mutex
	running  map[string]userspace.About // by device
	changed  chan struct{}              // closed when running changes, or a supervisor is there that was not
	awaiting bool                       // the supervisor
}

func newProcesses(p Params) *processes {
	return &processes{
		runDir: p.RunDir, logFormat: p.LogFormat, supervise: p.Options.Supervise, log: p.Log,
		client: userspace.Client{RunDir: p.RunDir},
		closed: make(chan struct{}), running: map[string]userspace.About{}, changed: make(chan struct{}),
	}
}

// close stops watching; the processes go on.
func (p *processes) close() { close(p.closed) }

// of returns the process of a device, and a channel that is closed when one starts or ends. Not ok: there is none.
func (p *processes) of(device string) (about userspace.About, changed <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	about, ok = p.running[device]
	return about, p.changed, ok
}

// ensure returns when a device has a process. One of another version goes on: to replace it would end all sessions.
func (p *processes) ensure(ctx context.Context, device string, mtu int) error {
	if _, _, ok := p.of(device); ok {
		return nil
	}
	err := p.find(device)
	if !missing(err) {
		return err
	}
	if !p.supervise {
		return p.request(device, mtu)
	}
	child, err := userspace.Start(p.runDir, device, mtu, p.logFormat)
	if err != nil {
		return err
	}
	p.log.Info("WireGuard was started in a process", "device", device, "pid", child.PID)
	return child.Await(ctx, func() bool { return p.find(device) == nil })
}

// request has the supervisor start the process of a device.
func (p *processes) request(device string, mtu int) error {
	err := p.client.Start(device, mtu)
	switch {
	case missing(err):
		p.await()
		return errors.New("with myelin.wireguard.supervise: false the agent starts none, and no supervisor answers: " +
			"see the pods of DaemonSet myelin-wireguard (encryption.wireguard.userspaceFallback: true), or start " +
			"`myelin wireguard supervise`")
	case err != nil:
		return err
	}
	p.log.Info("WireGuard was started in a process of the supervisor", "device", device)
	return p.find(device)
}

// superviseTime is between two looks for a supervisor that is missing: retries of a row may be half a minute apart.
const superviseTime = time.Second

// await has devices looked at again when there is a supervisor.
func (p *processes) await() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaiting {
		return
	}
	p.awaiting = true
	go func() {
		for !p.client.Supervised() {
			select {
			case <-p.closed:
				return
			case <-time.After(superviseTime):
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.awaiting = false
		p.wake()
	}()
}

// wake says that something has changed; the caller holds mu.
func (p *processes) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// find looks for the process of a device, and watches it. The error wraps fs.ErrNotExist if there is none.
func (p *processes) find(device string) error {
	about, ended, err := p.client.Watch(device, p.closed)
	if err != nil {
		return err
	}
	p.set(device, &about)
	go func() {
		<-ended
		p.set(device, nil)
	}()
	return nil
}

func (p *processes) set(device string, about *userspace.About) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if about == nil {
		delete(p.running, device)
	} else {
		p.running[device] = *about
	}
	p.wake()
}

// instance tells apart what a device consists of: a process, or, empty, the kernel.
func (p *processes) instance(device string) (string, <-chan struct{}) {
	about, changed, ok := p.of(device)
	if !ok {
		return "", changed
	}
	return about.Instance(), changed
}

// memory is what the process of a device takes, in bytes; 0 if it has none, or does not answer.
func (p *processes) memory(device string) uint64 {
	if _, _, ok := p.of(device); !ok {
		return 0
	}
	about, err := p.client.About(device)
	if err != nil {
		return 0
	}
	return about.Memory
}

// either configures devices of the kernel and of processes.
type either struct {
	kernel    control
	processes *processes
}

func (e *either) of(device string) control {
	if _, _, ok := e.processes.of(device); ok {
		return &e.processes.client
	}
	return e.kernel
}

// Device implements control.
func (e *either) Device(name string) (*wgtypes.Device, error) { return e.of(name).Device(name) }

// ConfigureDevice implements control.
func (e *either) ConfigureDevice(name string, c wgtypes.Config) error {
	return e.of(name).ConfigureDevice(name, c)
}

// Close implements control.
func (e *either) Close() error {
	e.processes.close()
	return e.kernel.Close()
}

// userspace makes a process the device, because the kernel has no WireGuard; have: an earlier one has made the device.
func (o *deviceOps) userspace(ctx context.Context, d *Device, have netlink.Link) (netlink.Link, error) {
	if err := o.processes.ensure(ctx, d.Name, d.MTU); err != nil {
		return nil, fmt.Errorf("the kernel has no WireGuard, and a process could not replace it: %w", err)
	}
	if have != nil {
		d.Note = cmp.Or(d.Note, "adopted")
		return have, nil
	}
	d.Note = "made by a process: the kernel has no WireGuard"
	link, err := o.made(d)
	if err == nil {
		err = o.kernel.LinkSetTxQLen(link, queueLength)
	}
	return link, err
}

// inProcess tells that a process is the device, and what that costs.
func (f *Feature) inProcess(s *feature.Status, about userspace.About) {
	where, end := "process "+strconv.Itoa(about.PID), "end it"
	if about.PID == 0 {
		where, end = "a process in another container", "delete its pod (DaemonSet myelin-wireguard)"
	}
	s.Why = "in " + where + ", device " + DeviceName
	s.Cost += fmt.Sprintf(", two copies to and from the process, and its memory, up to %d MB",
		userspace.MemoryLimit>>20)
	s.FallBack("the kernel has no WireGuard: " + where + " encrypts, with a part of the throughput")
	if about.Version != f.Version {
		s.FallBack(where + " is of version " + about.Version + ": " + end + ", and one of the new version is " +
			"started; packets are lost until it has made new sessions")
	}
}
