package httpproxy

import (
	"time"

	"golang.org/x/sys/unix"
)

// pair is a relay whose messages a loop relays. The loop leaves it to the relay's goroutines when something comes that
// is not simple, before it has changed anything of it: these decide on all errors, on the ends of connections, and on
// what takes long.
type pair struct {
	*relay
	loop  *loop
	index int32
	fds   [2]int // by end
	used  time.Time
	// back is closed when the loop has left the pair. expired: it was idle for too long. broken: a body was not
	// well-formed.
	back                     chan struct{}
	leaving, expired, broken bool

	// request and response are bodies that are being forwarded. A request waits for its response while queue has it.
	request, response body
	answering         bool // a response has begun
	// unread was read and is not consumed, unsent is what the socket has not taken, by end.
	unread, unsent [2][]byte
}

// bodyReads bounds what is read of a body at once, so that other connections have their turn.
const bodyReads = 8

const hangUp = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR

// event relays what has come from an end, and leaves the pair if it must.
func (p *pair) event(from end, flags uint32) {
	if p.leaving = flags&hangUp != 0; !p.leaving {
		p.read(from)
	}
	if p.leaving {
		p.loop.remove(p)
		close(p.back)
	}
}

func (p *pair) read(from end) {
	for range bodyReads {
		b := p.loop.buffer
		n, errno := receive(p.fds[from], b)
		if errno == unix.EAGAIN { // the bytes of this event were read after the one before it
			return
		}
		if errno != 0 || n == 0 {
			p.leaving = true // the goroutine meets it again
			return
		}
		p.received(from, b[:n], n == len(b))
		if n < len(b) || p.leaving { // another event comes when more has arrived
			return
		}
	}
	p.leaving = true
}

// received relays bytes. full: there may be more.
func (p *pair) received(from end, b []byte, full bool) {
	waiting := len(p.queue) > 0
	switch {
	case from == clientEnd && !p.request.done():
		p.forwardBody(&p.request, clientEnd, b)
	case from == serverEnd && !p.response.done():
		p.forwardBody(&p.response, serverEnd, b)
	case p.proxy.draining(), full, from == clientEnd && waiting, from == serverEnd && (!waiting || !p.request.done()):
		// much at once, a request before the response to the last one, or a response to none or to half of one,
		// or one that may be the last
		p.keep(from, b)
	case from == clientEnd:
		p.relayRequest(b)
	default:
		p.relayResponse(b)
	}
	if p.response.done() && p.answering {
		p.answering = false
		p.queue = p.queue[:0]
	}
}

// keep leaves bytes to the relay's goroutine.
func (p *pair) keep(from end, b []byte) {
	p.unread[from] = append([]byte(nil), b...)
	p.leaving = true
}

// relayRequest relays a request if b is its head, and what has come of its body.
func (p *pair) relayRequest(b []byte) {
	h := &p.head
	size := headEnd(b, 0)
	if size == 0 || size > p.proxy.limits.MaxHeaderBytes || b[0] == '\r' || h.parseRequest(b[:size]) != 0 ||
		!h.simple() {
		p.keep(clientEnd, b)
		return
	}
	rest := newBody(h.requestBody(), h.length)
	out, in, _ := rest.take(b[size:]) // no error is possible with Content-Length
	if size+in < len(b) || rest.remaining >= spliceFrom {
		p.keep(clientEnd, b)
		return
	}
	h.request(&p.req, p.serverName)
	d := p.decide(&p.req, h, p.fields)
	if !d.allowed && !rest.done() {
		p.keep(clientEnd, b)
		return
	}
	now := p.time()
	record := p.record(&p.req, h.first[2], &d, now)
	if !d.allowed {
		denied := p.denied()
		p.finish(record, denied.recorded(), true, now)
		p.send(clientEnd, localReply(denied, h.minor, h.first[0] == "HEAD"))
		return
	}
	p.queue = append(p.queue[:0], exchange{head: h.first[0] == "HEAD", record: record})
	p.request = rest
	if first := b[:size+out]; !h.changed {
		p.send(serverEnd, first)
	} else {
		p.scratch = append(h.append(p.scratch[:0]), first[size:]...)
		p.send(serverEnd, p.scratch)
		p.trim()
	}
}

// simple says whether a loop relays a request: it is not the last one, its response decides nothing about what follows,
// and the end of its body is known.
func (h *head) simple() bool {
	return h.persistent() && !h.expect && !h.chunked && h.upgrade == "" && h.first[0] != "CONNECT"
}

// relayResponse relays a response if b is its head, and what has come of its body.
func (p *pair) relayResponse(b []byte) {
	h := &p.loop.response
	size := headEnd(b, 0)
	if size == 0 || size > p.proxy.limits.MaxHeaderBytes {
		p.keep(serverEnd, b)
		return
	}
	status, ok := h.parseResponse(b[:size])
	if !ok || status < 200 || !h.persistent() {
		p.keep(serverEnd, b)
		return
	}
	e := p.queue[0]
	rest := newBody(h.responseBody(status, e.head), h.length)
	if rest.kind == bodyUntilClose || rest.kind == bodyLength && rest.remaining > int64(len(b)-size)+spliceFrom {
		p.keep(serverEnd, b)
		return
	}
	p.finish(e.record, status, false, p.time())
	out, in, err := rest.take(b[size:])
	if err != nil {
		p.broken, p.leaving = true, true
		return
	}
	p.answered, p.answering, p.response = true, true, rest
	first := b[:size+out]
	if h.changed {
		first = append(h.append(nil), first[size:]...)
	}
	if p.send(clientEnd, first); size+in < len(b) {
		p.keep(serverEnd, b[size+in:])
	}
}

// forwardBody forwards more of a body.
func (p *pair) forwardBody(rest *body, from end, b []byte) {
	out, in, err := rest.take(b)
	if err != nil {
		p.broken, p.leaving = true, true
		return
	}
	if p.send(1-from, b[:out]); in < len(b) {
		p.keep(from, b[in:])
	}
}

// time is that of the batch of events, which is exact enough without records.
func (p *pair) time() time.Time {
	if p.flow.Record == nil || p.flow.Recorded != nil && !p.flow.Recorded() {
		return p.loop.now
	}
	return p.proxy.now()
}

// send writes to an end. If the socket does not take all, the loop leaves the pair.
func (p *pair) send(to end, b []byte) {
	for len(b) > 0 {
		n, errno := send(p.fds[to], b)
		if errno != 0 { // there is no room, or the goroutine meets the error again
			p.unsent[to] = append([]byte(nil), b...)
			p.leaving = true
			return
		}
		b = b[n:]
	}
}
