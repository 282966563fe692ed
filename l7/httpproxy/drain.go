package httpproxy

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"myelin/l7/config"
)

const (
	// drainIdle is how long connections stay open without a request while the proxy drains. A client that sends a
	// request while its connection is closed has to repeat it, so they are not closed at once.
	drainIdle = 30 * time.Second
	// goAwayTime is for requests that are on their way when the client is told to send no more (RFC 9113, section 6.8).
	goAwayTime = time.Second
	// maxStreamID is the highest number of a stream.
	maxStreamID = math.MaxInt32
)

// drain is the state of Drain. Proxies that differ in their limits only share it.
type drain struct {
	draining atomic.Bool
	idleTime time.Duration // drainIdle
	// begun is done when the proxy drains, and idle drainIdle later.
	begun, idle    context.Context
	begin, endIdle context.CancelFunc
}

func newDrain() *drain {
	d := &drain{idleTime: drainIdle}
	d.begun, d.begin = context.WithCancel(context.Background())
	d.idle, d.endIdle = context.WithCancel(context.Background())
	return d
}

// Drain ends connections as soon as no request is lost by that: in HTTP/1 after the next response, which says so
// ("Connection: close"), in HTTP/2 after GOAWAY and the requests that are being served. Others are not ended.
func (p *Proxy) Drain() {
	if p.drain.draining.CompareAndSwap(false, true) {
		p.drain.begin()
		time.AfterFunc(p.drain.idleTime, p.drain.endIdle)
	}
}

// WithLimits returns a proxy with other limits for connections to come. Drain of one drains both.
func (p *Proxy) WithLimits(limits config.HTTP) *Proxy {
	other := New(limits, p.headers, p.now)
	other.drain = p.drain
	return other
}

func (p *Proxy) draining() bool { return p.drain.draining.Load() }

// idleTimeout is for connections in HTTP/1 without a request.
func (p *Proxy) idleTimeout() time.Duration {
	if p.draining() {
		return min(p.limits.IdleTimeout, p.drain.idleTime)
	}
	return p.limits.IdleTimeout
}

// closesAfter makes the response that is forwarded next the last one, if the proxy drains, the request was sent as a
// whole and none follows it yet.
func (r *relay) closesAfter() bool {
	if !r.proxy.draining() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) != 1 || r.sending {
		return false
	}
	r.closing, r.queue[0].last = true, true
	return true
}

// endIdle ends a connection without a request, unless a loop has it, which does so itself.
func (r *relay) endIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting && !r.joining && len(r.queue) == 0 {
		r.closing = true
		r.client.SetReadDeadline(time.Unix(1, 0))
	}
}

// announceClose makes the head that of the connection's last response.
func (h *head) announceClose() {
	h.remove(func(header Header) bool {
		kind := kindOf(header.Name)
		return kind == fieldConnection || kind == fieldKeepAlive || kind == fieldUpgrade
	})
	h.add("Connection", "close")
}

// leave tells the client to open no more streams, and ends the connection when there are none.
func (r *relay2) leave() {
	r.announceGoAway(maxStreamID)
	time.Sleep(goAwayTime)
	r.mu.Lock()
	r.draining, r.leaving = true, true
	last := r.last
	r.mu.Unlock()
	r.announceGoAway(last)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endIfIdle()
}

// announceGoAway sends GOAWAY. An error is the client's, which has gone.
func (r *relay2) announceGoAway(last uint32) {
	_ = r.client2.write(func(f *http2.Framer) error { return f.WriteGoAway(last, http2.ErrCodeNo, nil) })
	_ = r.client2.flush()
}

// endIfIdle wakes the client's goroutine when nothing is left to do for it. The lock is held.
func (r *relay2) endIfIdle() {
	if r.leaving && len(r.streams) == 0 {
		r.session.client.SetReadDeadline(time.Unix(1, 0))
	}
}
