// Package httpload sends HTTP/1.1 requests on connections that stay open, at a given rate or as fast as they are
// answered, and reports how many and how long each took.
package httpload

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what to do.
type Config struct {
	To          netip.AddrPort
	Path        string
	Connections int
	// Rate is how many requests a second begin, whether or not earlier ones are answered; latencies are from when a
	// request was due. 0: each connection sends its next request when the last one is answered.
	Rate     int
	Duration time.Duration
}

// Report is what became of it.
type Report struct {
	Requests int
	Seconds  float64
	// P50 and P99 are latencies in ms.
	P50, P99 float64
}

// RPS is the number of requests a second.
func (r Report) RPS() float64 { return float64(r.Requests) / r.Seconds }

// load is one run. It uses one thread and no goroutines: the generator must cost less than what it measures.
type load struct {
	Config
	request []byte
	buffer  []byte
	epoll   int
	conns   []conn
	idle    []int           // indexes of connections without a request
	waiting []time.Duration // when requests were due that no connection was free for
	begin   time.Time
	begun   int // requests
	list    []time.Duration
}

type conn struct {
	fd  int
	due time.Duration // of the request in flight, since begin
	// got is what has come of the response; need is its size, 0 until its head is complete.
	got, need int
}

// Run opens the connections, sends a request on each, and then measures. A response other than 200 is an error.
func Run(c Config) (Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &load{Config: c, buffer: make([]byte, 64<<10), request: requestFor(c.To, c.Path)}
	defer l.close()
	if err := l.open(); err != nil {
		return Report{}, err
	}
	// Expirations are late by 50 µs otherwise.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return Report{}, fmt.Errorf("set the timer slack: %w", err)
	}
	l.begin = time.Now()
	for elapsed := time.Duration(0); elapsed < c.Duration; elapsed = time.Since(l.begin) {
		if err := l.start(elapsed); err != nil {
			return Report{}, err
		}
		if err := l.wait(); err != nil {
			return Report{}, err
		}
	}
	return l.report(time.Since(l.begin)), nil
}

func requestFor(to netip.AddrPort, path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: httpload\r\nAccept: */*\r\n\r\n", path, to)
}

func (l *load) close() {
	for _, c := range l.conns {
		unix.Close(c.fd)
	}
	if l.epoll > 0 {
		unix.Close(l.epoll)
	}
}

// open connects, and has each connection answered once.
func (l *load) open() error {
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("open epoll: %w", err)
	}
	for i := range l.Connections {
		fd, err := dial(l.To)
		if err != nil {
			return err
		}
		l.conns = append(l.conns, conn{fd: fd})
		if err := l.send(i, 0); err != nil {
			return err
		}
		for len(l.list) <= i { // blocking still
			if err := l.receive(i); err != nil {
				return err
			}
		}
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := errors.Join(unix.SetNonblock(fd, true),
			unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event)); err != nil {
			return err
		}
	}
	l.list, l.begun = l.list[:0], 0
	return nil
}

func dial(to netip.AddrPort) (int, error) {
	domain, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: as4(to.Addr())})
	if to.Addr().Is6() {
		domain, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	patience := unix.NsecToTimeval(int64(5 * time.Second))
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience))
	if err == nil {
		err = unix.Connect(fd, address)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	return fd, nil
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// start begins the requests that are due.
func (l *load) start(elapsed time.Duration) error {
	if l.Rate == 0 {
		for len(l.idle) > 0 {
			if err := l.send(l.pop(), time.Since(l.begin)); err != nil {
				return err
			}
		}
		return nil
	}
	for l.dueAt(l.begun+len(l.waiting)) <= elapsed {
		l.waiting = append(l.waiting, l.dueAt(l.begun+len(l.waiting)))
	}
	for len(l.waiting) > 0 && len(l.idle) > 0 {
		due := l.waiting[0]
		l.waiting = l.waiting[1:]
		if err := l.send(l.pop(), due); err != nil {
			return err
		}
	}
	return nil
}

func (l *load) dueAt(request int) time.Duration {
	return time.Duration(request) * time.Second / time.Duration(l.Rate)
}

// pop takes the connection that has been idle for longest, so that all of them are used.
func (l *load) pop() int {
	i := l.idle[0]
	l.idle = l.idle[1:]
	return i
}

func (l *load) send(i int, due time.Duration) error {
	c := &l.conns[i]
	c.due, c.got, c.need = due, 0, 0
	l.begun++
	if n, err := unix.Write(c.fd, l.request); err != nil || n != len(l.request) {
		return fmt.Errorf("send a request: %d bytes, %w", n, err)
	}
	return nil
}

// wait receives what has come, after waiting for it or for the next request to be due.
func (l *load) wait() error {
	patience := 100 * time.Millisecond
	if l.Rate > 0 && len(l.waiting) == 0 {
		patience = max(l.dueAt(l.begun)-time.Since(l.begin), 0)
	}
	var events [128]unix.EpollEvent
	n, err := epollWait(l.epoll, events[:], patience)
	if err != nil {
		return err
	}
	for _, e := range events[:n] {
		if err := l.receive(int(e.Fd)); err != nil {
			return err
		}
	}
	return nil
}

// receive reads once, and ends the request if its response is complete.
func (l *load) receive(i int) error {
	c := &l.conns[i]
	n, err := unix.Read(c.fd, l.buffer)
	if err != nil || n == 0 {
		return fmt.Errorf("receive a response: %d bytes, %w", n, err)
	}
	if c.need == 0 {
		if c.got > 0 {
			return errors.New("receive a response: its head came in parts")
		}
		if c.need, err = responseSize(l.buffer[:n]); err != nil {
			return err
		}
	}
	if c.got += n; c.got < c.need {
		return nil
	}
	if c.got > c.need {
		return fmt.Errorf("receive a response: %d bytes instead of %d", c.got, c.need)
	}
	l.list = append(l.list, time.Since(l.begin)-c.due)
	l.idle = append(l.idle, i)
	return nil
}

// responseSize is the size of a response of which the whole head is there.
func responseSize(b []byte) (int, error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 || !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("receive a response: %.200q", b)
	}
	for line := range bytes.Lines(b[:end+2]) {
		const name = "content-length:"
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			size := 0
			if _, err := fmt.Sscan(string(line[len(name):]), &size); err != nil {
				return 0, fmt.Errorf("receive a response: %q", line)
			}
			return end + 4 + size, nil
		}
	}
	return 0, fmt.Errorf("receive a response: %q has no Content-Length", b[:end])
}

func (l *load) report(elapsed time.Duration) Report {
	slices.Sort(l.list)
	r := Report{Requests: len(l.list), Seconds: elapsed.Seconds()}
	if len(l.list) > 0 {
		r.P50 = l.list[len(l.list)/2].Seconds() * 1000
		r.P99 = l.list[len(l.list)*99/100].Seconds() * 1000
	}
	return r
}
