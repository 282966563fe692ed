package httpproxy

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// errJoin ends the server's goroutine so that a loop relays what follows.
var errJoin = errors.New("a loop relays what follows")

// maxAlone is the largest number of responses after which a loop tries again: as many more each time one has left.
const maxAlone = 1024

// wantsLoop says, after a response, whether a loop is to relay what follows: nothing is in flight, and the client's
// goroutine waits for a request. It wakes that.
func (r *relay) wantsLoop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alone++
	if !r.waiting || len(r.queue) > 0 || r.ending || r.closing || r.proxy.draining() || len(r.server.bytes()) > 0 ||
		r.client.raw == nil || r.server.raw == nil || r.alone < min(1<<min(r.left, 10), maxAlone) {
		return false
	}
	r.joining = true
	r.client.SetReadDeadline(time.Unix(1, 0))
	return true
}

// fillHead reads more of a request head. It is false if no request follows.
func (r *relay) fillHead(partial bool) (again bool, _ error) {
	r.setWaiting(!partial)
	err := r.client.fill()
	if !r.setWaiting(false) {
		if err == nil {
			return true, nil
		}
		return r.headFailed(err, partial)
	}
	r.responses.Wait()
	r.mu.Lock()
	r.joining = false
	r.mu.Unlock()
	r.client.readUntil = time.Time{}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return r.join()
	}
	r.responses.Go(r.respond)
	if err == nil {
		return true, nil
	}
	return r.headFailed(err, partial)
}

// setWaiting says whether the server's goroutine has ended for a loop.
func (r *relay) setWaiting(waiting bool) (joining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = waiting
	return r.joining
}

// join has a loop relay messages until one comes that is not simple. Afterwards the goroutines do so again. It is false
// if no request follows.
func (r *relay) join() (more bool, _ error) {
	p := &pair{relay: r, used: r.proxy.now(), back: make(chan struct{})}
	if err := r.detach(p); err != nil {
		return false, err
	}
	p.loop = r.proxy.loops.pick(r.proxy)
	if err := p.loop.add(p); err != nil {
		return false, errors.Join(err, r.attach(p))
	}
	<-p.back
	r.left++
	r.alone = 0
	if err := r.attach(p); err != nil {
		return false, err
	}
	return r.resume(p)
}

// detach takes the sockets from the runtime, which would wake a thread for each of their events.
func (r *relay) detach(p *pair) error {
	for i, s := range []*stream{r.client, r.server} {
		fd, err := duplicate(s.raw)
		if err != nil {
			if i > 0 {
				unix.Close(p.fds[0])
			}
			return err
		}
		p.fds[i] = fd
	}
	r.conns.Lock()
	defer r.conns.Unlock()
	r.client.Conn.Close()
	r.server.Conn.Close()
	r.pair = p
	if r.aborted {
		p.shutdown()
	}
	return nil
}

// attach gives the sockets back to the runtime.
func (r *relay) attach(p *pair) error {
	r.conns.Lock()
	defer r.conns.Unlock()
	r.pair = nil
	var failed error
	for i, s := range []*stream{r.client, r.server} {
		conn, err := connOf(p.fds[i])
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		s.use(conn)
		if r.aborted {
			conn.Close()
		}
	}
	return failed
}

// resume goes on where a loop has left.
func (r *relay) resume(p *pair) (more bool, _ error) {
	if p.expired {
		return false, nil
	}
	if p.broken {
		r.client.Conn.Close() // it must not take the response for complete
		return false, errChunks
	}
	r.client.hold(p.unread[clientEnd])
	r.server.hold(p.unread[serverEnd])
	now, idle := r.proxy.now(), r.proxy.limits.IdleTimeout
	if b := p.unsent[serverEnd]; len(b) > 0 {
		if err := r.server.write(b, now, idle); err != nil {
			return false, writeError{err}
		}
	}
	if b := p.unsent[clientEnd]; len(b) > 0 {
		if err := r.client.write(b, now, idle); err != nil {
			return false, err
		}
	}
	r.rest, r.sending = p.response, !p.request.done()
	r.responses.Go(r.respond)
	if p.request.done() {
		return true, nil
	}
	if err := r.transferBody(r.client, r.server, &p.request); err != nil {
		r.dirty = true
		return false, err
	}
	r.sent()
	return true, nil
}
