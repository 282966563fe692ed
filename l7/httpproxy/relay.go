package httpproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// relay is a connection in HTTP/1. The goroutine of the client reads requests, and that of the server, which begins
// with the first allowed request, reads responses. Each waits in its own read only, so that a request in flight costs
// no goroutine of its own.
type relay struct {
	*session
	head    head // of the client's requests
	req     Request
	scratch []byte

	mu      sync.Mutex
	changed sync.Cond
	// queue has the requests that wait for their responses, in order. While it is empty, the goroutine of the client
	// may write to the client; otherwise that of the server does.
	queue []exchange
	// ending: no request follows. lost: the server's goroutine has ended. tunnel: an upgrade was accepted.
	ending, lost, tunnel bool
	// sending: the body of queue's last request is not sent as a whole. closing: no request follows, since the proxy
	// drains.
	sending, closing bool
	// dirty: the client may be sending what is not read.
	dirty bool
	// waiting: the goroutine of the client waits for the next request, of which nothing has come. joining: that of the
	// server has ended so that a loop relays what follows.
	waiting, joining bool
	// answered: a response has come. rest is a response's body of which a loop has relayed the beginning.
	answered bool
	rest     body
	// alone counts responses that no loop has relayed since one left, and left how often that happened.
	alone, left int

	responses  sync.WaitGroup
	serverFail error
}

// exchange is a request that waits for its response.
type exchange struct {
	head, connect, upgrade bool
	last                   bool
	local                  []byte // the response, if the proxy makes it
	status                 int    // of the local response
	record                 *Record
}

func newRelay(s *session) *relay {
	r := &relay{session: s}
	r.changed.L = &r.mu
	return r
}

// run relays until both sides are done.
func (r *relay) run(ctx context.Context) error {
	defer context.AfterFunc(r.proxy.drain.idle, r.endIdle)()
	err := r.requests(ctx)
	r.end(err)
	r.responses.Wait()
	if r.tunnelled() {
		return errors.Join(err, r.serverFail)
	}
	fail := writeError{}
	if err == nil || errors.As(err, &fail) || r.dirty {
		r.client.linger(r.proxy.now())
	}
	return errors.Join(err, r.serverFail)
}

func (r *relay) tunnelled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tunnel
}

// end makes the server's goroutine end when its queue is empty.
func (r *relay) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
	if r.server == nil || r.tunnel {
		return
	}
	if fail := (writeError{}); err != nil && !errors.As(err, &fail) {
		r.server.Conn.Close()
	} else if len(r.queue) == 0 {
		r.server.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// requests relays requests until the client sends no more, or one is the last.
func (r *relay) requests(ctx context.Context) error {
	for {
		size, err := r.readHead()
		if err != nil || size == 0 {
			return err
		}
		if p := r.head.parseRequest(r.client.bytes()[:size]); p != 0 {
			r.refuse(p)
			return nil
		}
		more, err := r.request(ctx, size)
		if err != nil || !more {
			return err
		}
	}
}

// readHead reads until a whole request head is in the client's buffer, and returns its size. It is 0 if the client
// sends no more, or has done nothing for too long.
func (r *relay) readHead() (int, error) {
	searched, partial := 0, false
	for {
		b := r.client.bytes()
		for searched == 0 && len(b) >= 2 && b[0] == '\r' && b[1] == '\n' {
			r.client.consume(2) // RFC 9112, section 2.2
			b = r.client.bytes()
		}
		size := headEnd(b, searched)
		if size > r.proxy.limits.MaxHeaderBytes || size == 0 && len(b) > r.proxy.limits.MaxHeaderBytes {
			r.refuse(headerTooLarge)
			return 0, nil
		}
		if size > 0 {
			if partial {
				r.client.readUntil = time.Time{}
			}
			return size, nil
		}
		searched = len(b)
		if len(b) > 0 && !partial {
			partial = true
			r.setRead(r.proxy.now().Add(r.proxy.limits.HeaderTimeout))
		} else if !partial {
			r.renewRead(r.proxy.now())
		}
		again, err := r.fillHead(len(b) > 0)
		if !again {
			return 0, err
		}
	}
}

// headFailed decides what the end of reading means: again says that the client may go on waiting for responses.
func (r *relay) headFailed(err error, partial bool) (again bool, _ error) {
	r.mu.Lock()
	waiting, lost := len(r.queue) > 0, r.lost
	r.mu.Unlock()
	timeout := net.Error(nil)
	switch {
	case lost:
		return false, nil
	case err == io.EOF && partial:
		return false, io.ErrUnexpectedEOF
	case err == io.EOF:
		return false, r.halfClose()
	case !errors.As(err, &timeout) || !timeout.Timeout():
		return false, err
	case partial:
		r.refuse(requestTimeout)
		return false, nil
	}
	r.client.readUntil = time.Time{}
	return waiting, nil
}

// halfClose tells the server that no request follows; responses may.
func (r *relay) halfClose() error {
	if r.server == nil {
		return nil
	}
	if err := r.server.closeWrite(); err != nil {
		return writeError{err}
	}
	return nil
}

// setRead sets the client's read deadline, unless the server's goroutine has ended and set it to wake the client's.
func (r *relay) setRead(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.lost && !r.joining {
		r.client.readUntil = until
		r.client.SetReadDeadline(until)
	}
}

// renewRead extends the client's read deadline to the idle timeout, if enough of it has passed.
func (r *relay) renewRead(now time.Time) {
	idle := r.proxy.limits.IdleTimeout
	if r.client.readUntil.Sub(now) < idle-idle/8 || r.client.readUntil.Sub(now) > idle {
		r.setRead(now.Add(idle))
	}
}

// refuse answers what is no valid request, and ends the connection: where the next request begins is not known.
func (r *relay) refuse(p problem) {
	r.dirty = true
	local := replyTo(p)
	record := (*Record)(nil)
	if p == badRequest || p == noSuchCoding {
		record = r.record(&Request{Method: r.head.first[0], Path: r.head.first[1], Host: r.head.host}, "HTTP/1.1",
			&decision{denied: -1}, r.proxy.now())
	}
	r.answer(exchange{local: localReply(local, 1, false), status: local.status, last: true, record: record})
}

// answer sends a response of the proxy, after those to earlier requests. It is false if the client is gone.
func (r *relay) answer(e exchange) bool {
	r.mu.Lock()
	r.awaitRoom()
	waiting, lost := len(r.queue) > 0, r.lost || r.closing
	if waiting && !lost {
		r.queue = append(r.queue, e)
	}
	r.mu.Unlock()
	if waiting || lost {
		return !lost
	}
	now := r.proxy.now()
	r.finish(e.record, e.status, true, now)
	return r.client.write(e.local, now, r.proxy.limits.IdleTimeout) == nil
}

// push waits for room in the queue. It is false if the server's goroutine has ended, or is about to. A request without
// a body is not in the way of closesAfter: the server has all of it when it responds.
func (r *relay) push(e exchange, hasBody bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitRoom()
	if r.lost || r.closing {
		return false
	}
	r.queue, r.sending = append(r.queue, e), hasBody
	return true
}

// sent notes that a request was sent as a whole.
func (r *relay) sent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending = false
}

// awaitRoom waits until few requests wait for their responses, or the server's goroutine has ended. The lock is held.
func (r *relay) awaitRoom() {
	for len(r.queue) >= maxPipelined && !r.lost {
		r.changed.Wait()
	}
}

// fields are the head's headers after rules have changed them.
func (r *relay) fields() []Header { return r.head.headers }
