package httpproxy

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loopBuffer is the size of what a loop reads at once. What does not fit is left to goroutines.
const loopBuffer = 64 << 10

// yieldTime is how long a loop runs until it yields to other goroutines. After 10 ms in one goroutine the runtime would
// take away its P, also while it waits in a system call, and look for such threads every 20 µs from then on.
const yieldTime = 5 * time.Millisecond

// maxSweep is the longest time between two searches for connections that were idle for too long.
const maxSweep = 5 * time.Second

// loops relay messages of connections in HTTP/1, one loop per processor.
type loops struct {
	mu   sync.Mutex
	list []*loop
	next int
}

// pick takes loops in turn.
func (l *loops) pick(p *Proxy) *loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.list) < min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) {
		l.list = append(l.list, &loop{proxy: p})
	}
	l.next++
	return l.list[l.next%len(l.list)]
}

// loop waits for the sockets of many connections in one thread, and does what there is to do at once. Compared with two
// goroutines per connection that wait in reads it saves, for each message, a read that finds nothing and two switches
// between goroutines, which often wake or stop a thread. It runs while it has connections.
type loop struct {
	proxy *Proxy

	// Of the loop's thread alone.
	buffer   []byte
	response head
	now      time.Time // when events came
	swept    time.Time
	yielded  time.Time

	mu    sync.Mutex
	epoll int // 0: the loop does not run
	pairs []*pair
	free  []int32 // indexes of pairs that are nil
	count int
}

// end is a socket of a pair. The number of a socket in epoll events is that of its pair, and the end in the last bit.
type end int

const (
	clientEnd end = iota
	serverEnd
)

// add has the loop relay a pair. Whatever has arrived is an event.
func (l *loop) add(p *pair) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoll == 0 {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open epoll: %w", err)
		}
		l.epoll = fd
		go l.run(fd)
	}
	if len(l.free) == 0 {
		l.free = append(l.free, int32(len(l.pairs)))
		l.pairs = append(l.pairs, nil)
	}
	p.index = l.free[len(l.free)-1]
	for i, fd := range p.fds {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: p.index<<1 | int32(i)}
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			l.forget(p)
			return fmt.Errorf("add to epoll: %w", err)
		}
	}
	l.free = l.free[:len(l.free)-1]
	l.pairs[p.index] = p
	l.count++
	return nil
}

// remove has the loop relay a pair no more. It is called by the loop's thread.
func (l *loop) remove(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(p)
	l.pairs[p.index] = nil
	l.free = append(l.free, p.index)
	l.count--
}

func (l *loop) forget(p *pair) {
	for _, fd := range p.fds {
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) // an error says that it was not added
	}
}

// run handles events until there are no pairs.
func (l *loop) run(epoll int) {
	buffer := make([]byte, loopBuffer)
	l.swept = l.proxy.now()
	sweep := min(max(l.proxy.limits.IdleTimeout/8, time.Millisecond), maxSweep)
	var events [128]unix.EpollEvent
	var pairs [len(events)]*pair
	for !l.ended() {
		n, err := unix.EpollWait(epoll, events[:], int(sweep.Milliseconds()))
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("wait for epoll events: %v", err)) // of a descriptor that is this loop's own
		}
		l.now, l.buffer = l.proxy.now(), buffer
		l.mu.Lock()
		for i := range max(n, 0) {
			pairs[i] = l.pairs[events[i].Fd>>1]
		}
		l.mu.Unlock()
		for i := range max(n, 0) {
			if p := pairs[i]; p != nil && !p.leaving {
				p.used = l.now
				p.event(end(events[i].Fd&1), events[i].Events)
			}
		}
		if l.now.Sub(l.yielded) >= yieldTime {
			runtime.Gosched()
			l.yielded = l.now
		}
		if l.now.Sub(l.swept) >= sweep {
			l.sweep()
		}
	}
}

// ended closes a loop without pairs.
func (l *loop) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 { // add holds the lock until its pair is counted
		return false
	}
	unix.Close(l.epoll)
	l.epoll, l.pairs, l.free = 0, nil, nil
	return true
}

// sweep ends connections that were idle for too long.
func (l *loop) sweep() {
	l.swept = l.now
	timeout := l.proxy.idleTimeout()
	l.mu.Lock()
	var idle []*pair
	for _, p := range l.pairs {
		if p != nil && len(p.queue) == 0 && l.now.Sub(p.used) > timeout {
			idle = append(idle, p)
		}
	}
	l.mu.Unlock()
	for _, p := range idle {
		p.expired, p.leaving = true, true
		l.remove(p)
		close(p.back)
	}
}
