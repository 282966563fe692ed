package httpproxy

import (
	"errors"
	"io"
	"time"
)

// body follows a body up to its end.
type body struct {
	kind      bodyKind
	remaining int64 // bodyLength
	chunks    chunks
	ended     bool // bodyUntilClose
}

func newBody(kind bodyKind, length int64) body { return body{kind: kind, remaining: length} }

func (b *body) done() bool {
	switch b.kind {
	case bodyLength:
		return b.remaining == 0
	case bodyChunked:
		return b.chunks.state == chunkDone
	case bodyUntilClose:
		return b.ended
	}
	return true
}

// take takes the body's bytes from the beginning of p and leaves there what is to be forwarded.
func (b *body) take(p []byte) (out, in int, err error) {
	switch b.kind {
	case bodyLength:
		n := int(min(b.remaining, int64(len(p))))
		b.remaining -= int64(n)
		return n, n, nil
	case bodyChunked:
		out, in, ok := b.chunks.next(p)
		if !ok {
			return 0, 0, errChunks
		}
		return out, in, nil
	case bodyUntilClose:
		return len(p), len(p), nil
	}
	return 0, 0, nil
}

var errChunks = errors.New("read body: chunks are not well-formed")

// writeError is an error of the side that a message is written to.
type writeError struct{ error }

// Unwrap is the error itself.
func (w writeError) Unwrap() error { return w.error }

// spliceFrom is the rest of a body from which on the kernel copies it, and spliceBytes is copied at once.
const (
	spliceFrom  = 64 << 10
	spliceBytes = 4 << 20
)

// transfer forwards a message of which the head, the first headLength bytes, is in from's buffer: the head and what has
// come of the body in one write, then the rest. If rebuilt is not nil, it is written instead of the head. Errors of
// the destination are writeErrors.
func (r *relay) transfer(from, to *stream, b *body, headLength int, rebuilt []byte, now time.Time) error {
	out, in, err := b.take(from.bytes()[headLength:])
	if err != nil {
		return err
	}
	first := from.bytes()[:headLength+out]
	if rebuilt != nil {
		first = append(rebuilt, first[headLength:]...)
	}
	if err := to.write(first, now, r.proxy.limits.IdleTimeout); err != nil {
		return writeError{err}
	}
	from.consume(headLength + in)
	return r.transferBody(from, to, b)
}

// transferBody forwards the rest of a body.
func (r *relay) transferBody(from, to *stream, b *body) error {
	idle := r.proxy.limits.IdleTimeout
	for !b.done() {
		if out, in, err := b.take(from.bytes()); err != nil {
			return err
		} else if in > 0 {
			if out > 0 {
				if err := to.write(from.bytes()[:out], r.proxy.now(), idle); err != nil {
					return writeError{err}
				}
			}
			from.consume(in)
			continue
		}
		now := r.proxy.now()
		if b.kind == bodyLength && b.remaining >= spliceFrom && from.buf == nil && from.raw != nil && to.raw != nil {
			if err := r.splice(from, to, b, now); err != nil {
				return err
			}
			continue
		}
		if err := r.more(from, now); err == io.EOF && b.kind == bodyUntilClose {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// splice moves bytes without copying them to user space.
func (r *relay) splice(from, to *stream, b *body, now time.Time) error {
	if from == r.client {
		r.renewRead(now)
	}
	if err := to.SetWriteDeadline(now.Add(r.proxy.limits.IdleTimeout)); err != nil {
		return writeError{err}
	}
	n, err := io.CopyN(to.Conn, from.Conn, min(b.remaining, spliceBytes))
	b.remaining -= n
	return err
}

// more reads more of a message; of the client's within the idle timeout.
func (r *relay) more(from *stream, now time.Time) error {
	if from == r.client {
		r.renewRead(now)
	}
	return from.fill()
}

// discard reads a body up to its end and says whether it ends within limit bytes.
func (r *relay) discard(from *stream, b *body, limit int) bool {
	for {
		_, in, err := b.take(from.bytes())
		if err != nil {
			return false
		}
		from.consume(in)
		if limit -= in; limit < 0 {
			return false
		}
		if b.done() {
			return true
		}
		if r.more(from, r.proxy.now()) != nil {
			return false
		}
	}
}
