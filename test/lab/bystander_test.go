package labtest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lane is a way on which bystanders of a flood talk to a server.
type lane struct {
	name   string
	family int
	from   end
	to     netip.AddrPort
	tcp    *net.TCPListener // nil for UDP
	takes  time.Duration    // by how much each attempt takes longer than a connection
	ask    func(ctx context.Context, number uint64) error

	lastError error
}

func (l *lane) String() string { return fmt.Sprintf("IPv%d %s", l.family, l.name) }

// attempt is a new connection of a bystander.
type attempt struct {
	lane  *lane
	begun time.Time
	took  time.Duration // 0 while it is going on
	err   error
}

// Each attempt has the time for a SYN that is lost, and one more. One that takes longer than quick has lost one.
const (
	attemptTimeout = 2500 * time.Millisecond
	attemptPause   = 25 * time.Millisecond
	quick          = 900 * time.Millisecond
)

func (a *attempt) bad() bool {
	took := a.took
	if took == 0 {
		took = time.Since(a.begun)
	}
	return a.err != nil || took > patience(quick)+a.lane.takes
}

// bystanders are what must not notice a flood: established connections, idle and active, and new ones.
type bystanders struct {
	t      *testing.T
	lanes  []*lane
	idle   []connection
	active []connection
	broken []string // names of active connections

	mu       sync.Mutex
	attempts []*attempt
	running  sync.WaitGroup
	stop     chan struct{}
	number   atomic.Uint64
}

// How many connections each lane has.
const (
	idlePerLane   = 10
	activePerLane = 2
)

// newBystanders opens the established connections of each lane, of which the server speaks first in every other one.
func newBystanders(t *testing.T, lanes []*lane) *bystanders {
	t.Helper()
	b := &bystanders{t: t, lanes: lanes, stop: make(chan struct{})}
	for _, l := range lanes {
		if l.tcp == nil {
			continue
		}
		for i := range idlePerLane + activePerLane {
			c := b.open(l, i)
			if err := c.exchange(patience(2 * time.Second)); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if i < idlePerLane {
				b.idle = append(b.idle, c)
			} else {
				b.active = append(b.active, c)
			}
		}
		go echoTCP(l.tcp)
	}
	return b
}

func (b *bystanders) open(l *lane, i int) connection {
	b.t.Helper()
	client, err := l.from.dialTCP(b.t.Context(), netip.AddrPort{}, l.to)
	if err != nil {
		b.t.Fatalf("%s: %v", l, err)
	}
	check(b.t, l.tcp.SetDeadline(soon()))
	server, err := l.tcp.AcceptTCP()
	if err != nil {
		b.t.Fatalf("%s: accept: %v", l, err)
	}
	check(b.t, l.tcp.SetDeadline(time.Time{}))
	b.t.Cleanup(func() { client.Close(); server.Close() })
	name := fmt.Sprintf("%s, %s", l, client.LocalAddr())
	if i%2 == 1 {
		return connection{name: name + ", the server speaks first", client: server, server: client}
	}
	return connection{name: name, client: client, server: server}
}

// run has active connections exchange bytes, and opens new ones, until finish.
func (b *bystanders) run() {
	for _, c := range b.active {
		b.running.Go(func() {
			for !b.over(100 * time.Millisecond) {
				if err := c.exchange(patience(3 * time.Second)); err != nil {
					b.mu.Lock()
					b.broken = append(b.broken, fmt.Sprintf("%s: %v", c.name, err))
					b.mu.Unlock()
					return
				}
			}
		})
	}
	for i, l := range b.lanes {
		b.running.Go(func() {
			time.Sleep(attemptPause * time.Duration(i) / time.Duration(len(b.lanes)))
			for !b.over(attemptPause) {
				b.running.Go(func() { b.try(l) })
			}
		})
	}
}

func (b *bystanders) over(pause time.Duration) bool {
	select {
	case <-b.stop:
		return true
	case <-time.After(pause):
		return false
	}
}

// try opens one new connection, or asks once by UDP from a new port, and keeps what became of it.
func (b *bystanders) try(l *lane) {
	a := &attempt{lane: l, begun: time.Now()}
	b.mu.Lock()
	b.attempts = append(b.attempts, a)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience(attemptTimeout))
	defer cancel()
	err := l.ask(ctx, b.number.Add(1))
	b.mu.Lock()
	a.took, a.err = time.Since(a.begun), err
	b.mu.Unlock()
}

// askTCP opens a connection and has one message echoed.
func (l *lane) askTCP(ctx context.Context, token uint64) error {
	return question{from: l.from, dst: l.to}.tcp(ctx, token)
}

// askUDP repeats the question, as UDP may lose one.
func (l *lane) askUDP(ctx context.Context, token uint64) error {
	c, err := l.from.dialUDP(ctx, netip.AddrPort{}, l.to)
	if err != nil {
		return err
	}
	question := fmt.Appendf(nil, "%08d", token%1e8)
	buf := make([]byte, 64)
	defer c.Close()
	for ctx.Err() == nil {
		if _, err := c.Write(question); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(patience(500 * time.Millisecond)))
		if n, err := c.Read(buf); err == nil && string(buf[:n]) == string(question) {
			return nil
		}
	}
	return ctx.Err()
}

// finish runs on after a flood has ended until all goes well, and returns the largest share of a lane's attempts that
// failed of those begun between two times, in percent, how many there were in all, and how long after the end the last
// bad one was begun.
func (b *bystanders) finish(begin, end time.Time) (worst float64, of int, recovery time.Duration) {
	const calm, most = time.Second, 10 * time.Second
	for time.Since(end) < patience(most) {
		time.Sleep(attemptPause)
		if time.Since(b.lastBad(end)) > patience(calm) {
			break
		}
	}
	close(b.stop)
	b.running.Wait()
	if last := b.lastBad(end); last.After(end) {
		recovery = last.Add(attemptPause).Sub(end)
	}
	tried, failed := map[*lane]int{}, map[*lane]int{}
	for _, a := range b.attempts {
		if a.begun.Before(begin) || a.begun.After(end) {
			continue
		}
		tried[a.lane]++
		if a.err != nil {
			failed[a.lane]++
			a.lane.lastError = a.err
		}
	}
	for _, l := range b.lanes {
		share := 100 * float64(failed[l]) / float64(max(tried[l], 1))
		worst, of = max(worst, share), of+tried[l]
		b.t.Logf("%s: %d of %d failed (%.1f %%): %v", l, failed[l], tried[l], share, l.lastError)
	}
	return worst, of, recovery
}

// lastBad is when the last bad attempt was begun, no earlier than the end of the flood.
func (b *bystanders) lastBad(end time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := end
	for _, a := range b.attempts {
		if a.bad() && a.begun.After(last) {
			last = a.begun
		}
	}
	return last
}

// establishedLost has all idle connections talk, and returns those that can't, and the active ones that broke.
func (b *bystanders) establishedLost() []string {
	lost := b.broken
	var wg sync.WaitGroup
	for _, c := range b.idle {
		wg.Go(func() {
			if err := c.exchange(patience(4 * time.Second)); err != nil {
				b.mu.Lock()
				lost = append(lost, fmt.Sprintf("%s: %v", c.name, err))
				b.mu.Unlock()
			}
		})
	}
	wg.Wait()
	return lost
}
