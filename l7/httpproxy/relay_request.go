package httpproxy

import (
	"context"
	"time"
)

// request relays one request, of which the head is in the client's buffer, with its body. It is false if no request
// follows.
func (r *relay) request(ctx context.Context, size int) (more bool, _ error) {
	now := r.proxy.now()
	h := &r.head
	h.request(&r.req, r.serverName)
	d := r.decide(&r.req, h, r.fields)
	record := r.record(&r.req, h.first[2], &d, now)
	if !d.allowed {
		return r.deny(size, record), nil
	}
	if r.server == nil {
		if err := r.dial(ctx, d.originating, h.host); err != nil {
			r.unavailable(record)
			return false, err
		}
		r.responses.Go(r.respond)
	}
	return r.forward(size, record, now)
}

// deny answers a request that no rule allows and skips its body. The connection stays open if that ends within bounds.
func (r *relay) deny(size int, record *Record) bool {
	h := &r.head
	denied := r.denied()
	// A client that expects 100 (Continue) may send the body or not.
	denied.close = r.proxy.draining() || !h.persistent() || h.length > maxDiscarded ||
		h.expect && h.hasBody() || h.first[0] == "CONNECT"
	e := exchange{local: localReply(denied, h.minor, h.first[0] == "HEAD"), status: denied.recorded(),
		last: denied.close, record: record}
	rest := newBody(h.requestBody(), h.length)
	r.client.consume(size)
	if r.dirty = denied.close; !r.answer(e) || denied.close {
		return false
	}
	r.dirty = !r.discard(r.client, &rest, maxDiscarded)
	return !r.dirty
}

// denied is the reply to a request that no rule allows.
func (r *relay) denied() reply {
	if r.head.grpc {
		return reply{status: 403, body: accessDenied, grpc: grpcPermissionDenied}
	}
	return reply{status: 403, body: accessDenied}
}

// unavailable answers a request for which there is no connection to the server, and ends the connection.
func (r *relay) unavailable(record *Record) {
	h := &r.head
	r.dirty = true
	local := reply{status: 503, body: upstreamConnectFailed, close: true}
	if h.grpc {
		local.grpc = grpcUnavailable
	}
	r.answer(exchange{local: localReply(local, h.minor, h.first[0] == "HEAD"), status: local.recorded(), last: true,
		record: record})
}

// forward sends an allowed request to the server.
func (r *relay) forward(size int, record *Record, now time.Time) (more bool, _ error) {
	h := &r.head
	e := exchange{head: h.first[0] == "HEAD", connect: h.first[0] == "CONNECT", upgrade: h.upgrade != "",
		last: !h.persistent(), record: record}
	if !r.push(e, h.hasBody()) {
		return false, nil
	}
	rebuilt := []byte(nil)
	if h.changed {
		r.scratch = h.append(r.scratch[:0])
		rebuilt = r.scratch
	}
	rest := newBody(h.requestBody(), h.length)
	if err := r.transfer(r.client, r.server, &rest, size, rebuilt, now); err != nil {
		r.dirty = true
		return false, err
	}
	r.sent()
	r.trim()
	if e.upgrade || e.connect {
		return r.awaitUpgrade()
	}
	return !e.last, nil
}

// trim gives up memory for heads that were unusually large.
func (r *relay) trim() {
	if cap(r.scratch) > 4096 {
		r.scratch = nil
	}
}

// awaitUpgrade waits for the response to a request after which the bytes may be no requests any more. If the server
// accepts, it passes the client's bytes until they end.
func (r *relay) awaitUpgrade() (more bool, _ error) {
	r.mu.Lock()
	for len(r.queue) > 0 && !r.tunnel && !r.lost {
		r.changed.Wait()
	}
	tunnel, lost := r.tunnel, r.lost
	r.mu.Unlock()
	if !tunnel {
		return !lost, nil
	}
	return false, r.copyAll(r.server, r.client)
}
