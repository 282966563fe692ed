package httpproxy

import (
	"errors"
	"io"
	"net"
	"time"
)

// errResponse is a response that cannot be forwarded.
var errResponse = errors.New("read response: it is not well-formed, or answers no request")

// respond relays responses, in the goroutine of the server, until there are no more.
func (r *relay) respond() {
	var h head
	err := r.relayResponses(&h)
	if err == errJoin {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	r.serverFail = err
	r.changed.Broadcast()
	if r.tunnel {
		return
	}
	r.server.Conn.Close()
	r.client.SetReadDeadline(time.Unix(1, 0)) // wakes the client's goroutine
}

// relayResponses relays responses until the last one, or until the server ends the connection.
func (r *relay) relayResponses(h *head) error {
	if !r.rest.done() {
		if err := r.transferBody(r.server, r.client, &r.rest); err != nil {
			r.client.Conn.Close()
			return err
		}
		if last, err := r.pop(false); last || err != nil {
			return err
		}
	}
	for {
		size, err := r.readResponse()
		if err != nil {
			return r.serverEnded(err, r.answered)
		}
		status, ok := h.parseResponse(r.server.bytes()[:size])
		e, waiting := r.front()
		if !ok || !waiting || status == 101 && !e.upgrade {
			if waiting && !r.answered {
				r.badGateway(e)
			}
			return errResponse
		}
		r.answered = true
		if status == 101 || e.connect && status/100 == 2 {
			return r.acceptUpgrade(h, e, status, size)
		}
		body := newBody(h.responseBody(status, e.head), h.length)
		now := r.proxy.now()
		if status >= 200 {
			r.finish(e.record, status, false, now)
			if r.closesAfter() {
				h.announceClose()
			}
		}
		if err := r.transfer(r.server, r.client, &body, size, rebuiltHead(h), now); err != nil {
			r.client.Conn.Close() // the client must not take the response for complete
			return err
		}
		if status < 200 {
			continue
		}
		if last, err := r.pop(!h.persistent() || body.kind == bodyUntilClose); last || err != nil {
			return err
		}
		if r.wantsLoop() {
			return errJoin
		}
	}
}

// rebuiltHead is the head to forward if it is not the one that was received.
func rebuiltHead(h *head) []byte {
	if !h.changed {
		return nil
	}
	return h.append(nil)
}

// readResponse reads until a whole response head is in the server's buffer, and returns its size.
func (r *relay) readResponse() (int, error) {
	for searched := 0; ; {
		b := r.server.bytes()
		if size := headEnd(b, searched); size > 0 && size <= r.proxy.limits.MaxHeaderBytes {
			return size, nil
		} else if size > 0 || len(b) > r.proxy.limits.MaxHeaderBytes {
			return 0, errResponse
		}
		searched = len(b)
		if err := r.server.fill(); err != nil {
			return 0, err
		}
	}
}

// front is the exchange that the next response is for.
func (r *relay) front() (exchange, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return exchange{}, false
	}
	return r.queue[0], true
}

// pop removes the exchange that is answered, and writes the proxy's own responses that are next. It returns true if
// no response follows: because the server closes the connection, or the client's last request is answered.
func (r *relay) pop(serverCloses bool) (last bool, _ error) {
	for {
		r.mu.Lock()
		last = last || r.queue[0].last || serverCloses
		r.queue = append(r.queue[:0], r.queue[1:]...)
		if len(r.queue) == 0 {
			last = last || r.ending
		}
		if last || len(r.queue) == 0 || r.queue[0].local == nil {
			r.changed.Broadcast()
			r.mu.Unlock()
			return last, nil
		}
		e := r.queue[0]
		r.changed.Broadcast()
		r.mu.Unlock()
		now := r.proxy.now()
		r.finish(e.record, e.status, true, now)
		if err := r.client.write(e.local, now, r.proxy.limits.IdleTimeout); err != nil {
			return false, err
		}
	}
}

// serverEnded decides what the end of the server's bytes means. While a request waits for the connection's first
// response it is answered by the proxy; later ones see the connection end, as they would without the proxy, and may be
// sent again.
func (r *relay) serverEnded(err error, answered bool) error {
	r.mu.Lock()
	waiting, ending := len(r.queue) > 0, r.ending
	r.mu.Unlock()
	timeout := net.Error(nil)
	if !waiting && (err == io.EOF || ending && errors.As(err, &timeout) && timeout.Timeout()) {
		return nil
	}
	if waiting && !answered {
		if e, _ := r.front(); err == io.EOF || errors.Is(err, errResponse) || !ending {
			r.badGateway(e)
			return nil
		}
	}
	return err
}

// badGateway answers a request whose response did not come.
func (r *relay) badGateway(e exchange) {
	now := r.proxy.now()
	r.finish(e.record, 503, true, now)
	b := localReply(reply{status: 503, body: upstreamConnectFailed, close: true}, 1, e.head)
	if r.client.write(b, now, r.proxy.limits.IdleTimeout) == nil {
		r.client.closeWrite()
	}
}

// acceptUpgrade passes the server's bytes until they end.
func (r *relay) acceptUpgrade(h *head, e exchange, status, size int) error {
	now := r.proxy.now()
	r.finish(e.record, status, false, now)
	var none body
	if err := r.transfer(r.server, r.client, &none, size, rebuiltHead(h), now); err != nil {
		return err
	}
	if err := errors.Join(r.client.SetDeadline(time.Time{}), r.server.SetDeadline(time.Time{})); err != nil {
		return err
	}
	r.mu.Lock()
	r.tunnel = true
	r.changed.Broadcast()
	r.mu.Unlock()
	return r.copyAll(r.client, r.server)
}
