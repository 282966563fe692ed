// Package openloop opens new TCP connections at a given rate, whether or not earlier ones succeed, and reports what
// became of them.
package openloop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Place is a network namespace: Do runs a function on a thread in it.
type Place interface {
	Do(func() error) error
}

// Client is where connections come from.
type Client struct {
	Place Place
	// what sockets are bound to, with a port that follows the last one; the zero value leaves both to the kernel
	Addr netip.Addr
}

// Config says what to do. Clients, To, Rate and Duration are required.
type Config struct {
	Clients  []Client // they take turns
	To       netip.AddrPort
	Rate     int // connections a second, of all clients together
	Duration time.Duration
	Timeout  time.Duration // after which a connection has failed: 3 s
	Slow     time.Duration // what takes longer is counted as slow: 0.5 s
	Workers  int           // threads that open connections: 2

	// ServerCloses has clients close after the server, which then keeps the port in TIME_WAIT.
	ServerCloses bool
}

// Report is what became of the connections.
type Report struct {
	Opened  int            // all of them
	Failed  int            // those that were not established
	Slow    int            // those that were, late
	Slowest time.Duration  // of those that were established
	Reasons map[string]int // of those that failed
	Rate    float64        // connections a second that were opened
}

func (r Report) String() string {
	return fmt.Sprintf("%d connections, %.0f a second: %d failed %v, %d were slow, the slowest took %s",
		r.Opened, r.Rate, r.Failed, r.Reasons, r.Slow, r.Slowest.Round(100*time.Microsecond))
}

func (r *Report) add(other Report) {
	r.Opened += other.Opened
	r.Failed += other.Failed
	r.Slow += other.Slow
	r.Slowest = max(r.Slowest, other.Slowest)
	for reason, n := range other.Reasons {
		r.Reasons[reason] += n
	}
}

func (c *Config) setDefaults() error {
	if len(c.Clients) == 0 || !c.To.IsValid() || c.Rate < 1 || c.Duration <= 0 {
		return errors.New("open connections: clients, a destination, a rate and a duration are required")
	}
	if c.Timeout == 0 {
		c.Timeout = 3 * time.Second
	}
	if c.Slow == 0 {
		c.Slow = 500 * time.Millisecond
	}
	if c.Workers == 0 {
		c.Workers = 2
	}
	c.Workers = min(c.Workers, len(c.Clients))
	return nil
}

// Run opens connections until the duration is over or ctx ends, and returns when each has been established or has
// failed.
func Run(ctx context.Context, c Config) (Report, error) {
	if err := c.setDefaults(); err != nil {
		return Report{}, err
	}
	total := Report{Reasons: map[string]int{}}
	var mu sync.Mutex
	var g errgroup.Group
	begin := time.Now()
	for i := range c.Workers {
		w := &worker{config: c, begin: begin, report: Report{Reasons: map[string]int{}}, index: i}
		g.Go(func() error {
			err := w.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			total.add(w.report)
			return err
		})
	}
	err := g.Wait()
	total.Rate = float64(total.Opened) / min(c.Duration, time.Since(begin)).Seconds()
	return total, err
}

// worker is one thread. It has every Workers-th client.
type worker struct {
	config  Config
	index   int
	begin   time.Time
	clients []Client
	spaces  []int // network namespaces of clients
	ports   []int // how many ports each client has used
	in      int   // the one that the thread is in, by index; -1 for none
	epoll   int
	since   map[int]time.Time // when each connection that is not established was begun, by file descriptor
	oldest  []opening         // in order
	waiting int               // how many are established and left for the server to close
	report  Report
}

type opening struct {
	fd    int
	begun time.Time
}

const (
	tick   = 2 * time.Millisecond
	atOnce = 64 // connections between two looks at those that are established
)

func (w *worker) run(ctx context.Context) (err error) {
	for i := w.index; i < len(w.config.Clients); i += w.config.Workers {
		w.clients = append(w.clients, w.config.Clients[i])
	}
	w.since, w.in = map[int]time.Time{}, -1
	defer w.close()
	for _, client := range w.clients {
		space, err := namespaceOf(client.Place)
		if err != nil {
			return err
		}
		w.spaces, w.ports = append(w.spaces, space), append(w.ports, 0)
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	defer unix.Close(w.epoll)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		done <- w.loop(ctx)
	}()
	return <-done
}

func (w *worker) loop(ctx context.Context) error {
	rate := float64(w.config.Rate) / float64(w.config.Workers)
	for {
		elapsed := time.Since(w.begin)
		over := elapsed >= w.config.Duration || ctx.Err() != nil
		if over && len(w.since) == 0 && (w.waiting == 0 || elapsed > w.config.Duration+w.config.Timeout) {
			return nil
		}
		due := 0
		if !over {
			due = int(rate*elapsed.Seconds()) - w.report.Opened
		}
		for range min(due, atOnce) {
			if err := w.open(); err != nil {
				return err
			}
		}
		wait := tick
		if due > atOnce {
			wait = 0
		}
		if err := w.collect(wait); err != nil {
			return err
		}
	}
}

// open begins a connection of the next client.
func (w *worker) open() error {
	i := w.report.Opened % len(w.clients)
	w.report.Opened++
	if w.in != i {
		if err := unix.Setns(w.spaces[i], unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		w.in = i
	}
	fd, err := unix.Socket(domain(w.config.To), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EMFILE) { // so many connections are stuck
		w.fail(err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	begun := time.Now()
	if err := w.connect(fd, i); err != nil {
		w.fail(err)
		return unix.Close(fd)
	}
	w.since[fd] = begun
	w.oldest = append(w.oldest, opening{fd, begun})
	event := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// Ports of clients that have an address. The kernel would look for a free one among all that are in TIME_WAIT, which
// takes it milliseconds when half of them are.
const (
	firstPort = 10_000
	lastPort  = 65_535
)

func (w *worker) connect(fd, client int) error {
	if from := w.clients[client].Addr; from.IsValid() {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil { // where TIME_WAIT is over
			return err
		}
		err := unix.EADDRINUSE
		for tries := 0; err == unix.EADDRINUSE && tries < 16; tries++ {
			port := firstPort + w.ports[client]%(lastPort-firstPort+1)
			w.ports[client]++
			err, _ = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, uint16(port)))).(unix.Errno)
		}
		if err != 0 {
			return err
		}
	}
	if err := unix.Connect(fd, sockaddr(w.config.To)); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return nil
}

// collect closes connections that are established, or have failed, and gives those up that have taken too long.
func (w *worker) collect(wait time.Duration) error {
	var events [256]unix.EpollEvent
	n, err := unix.EpollWait(w.epoll, events[:], int(wait/time.Millisecond))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for sockets: %w", err)
	}
	now := time.Now()
	for _, event := range events[:max(n, 0)] {
		fd := int(event.Fd)
		if _, begins := w.since[fd]; !begins { // established, and now closed by the server
			if err := unix.Close(fd); err != nil {
				return fmt.Errorf("close socket: %w", err)
			}
			w.waiting--
			continue
		}
		failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch took := now.Sub(w.since[fd]); {
		case err != nil:
			return fmt.Errorf("read error of socket: %w", err)
		case failed != 0:
			w.fail(unix.Errno(failed))
		default:
			w.report.Slowest = max(w.report.Slowest, took)
			if took > w.config.Slow {
				w.report.Slow++
			}
			if w.config.ServerCloses {
				if err := w.await(fd); err != nil {
					return err
				}
				continue
			}
		}
		if err := w.end(fd); err != nil {
			return err
		}
	}
	return w.giveUp(now)
}

// await leaves an established connection open until the server closes it.
func (w *worker) await(fd int) error {
	delete(w.since, fd)
	w.waiting++
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(fd)}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, fd, &event); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

func (w *worker) giveUp(now time.Time) error {
	for len(w.oldest) > 0 {
		first := w.oldest[0]
		begun, open := w.since[first.fd]
		open = open && begun.Equal(first.begun) // or the descriptor is another connection's by now
		if open && now.Sub(begun) < w.config.Timeout {
			return nil
		}
		w.oldest = w.oldest[1:]
		if open {
			w.fail(unix.ETIMEDOUT)
			if err := w.end(first.fd); err != nil {
				return err
			}
		}
	}
	return nil
}

// end closes a connection; that of epoll goes with it.
func (w *worker) end(fd int) error {
	delete(w.since, fd)
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close socket: %w", err)
	}
	return nil
}

func (w *worker) fail(err error) {
	w.report.Failed++
	w.report.Reasons[err.Error()]++
}

func (w *worker) close() {
	for fd := range w.since {
		unix.Close(fd)
	}
	for _, space := range w.spaces {
		unix.Close(space)
	}
}

// namespaceOf opens a place's network namespace.
func namespaceOf(p Place) (fd int, err error) {
	err = p.Do(func() error {
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open network namespace: %w", err)
	}
	return fd, nil
}

func domain(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
