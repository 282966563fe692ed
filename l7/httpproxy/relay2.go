package httpproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// relay2 is a connection in HTTP/2. Streams have the same numbers on both sides, and windows are those of the peers:
// the proxy passes their updates on, and itself credits only what it does not pass on. So it buffers no bodies.
type relay2 struct {
	*session
	client2, server2 *side

	mu      sync.Mutex
	streams map[uint32]*stream2
	last    uint32 // the highest stream that the client has opened
	// credit is what the client granted to the connection before there was one to the server, and settings what it set.
	credit   uint32
	settings []http2.Setting
	// known is what the client knows of the server's settings.
	known map[http2.SettingID]uint32
	// owed are bytes of the proxy's own responses, which the client grants again to the connection but the server has
	// not sent.
	owed atomic.Int64
	// resets are the streams that were reset last: the client may not know yet.
	resets [64]uint32
	reset  int
	// draining: the server accepts no more streams. lost: its goroutine has ended.
	// leaving: nor does the proxy, which drains.
	draining, lost, leaving bool
	responses               sync.WaitGroup
}

// stream2 is a stream that both sides have.
type stream2 struct {
	record     *Record
	head, grpc bool
	answered   atomic.Bool // the head of the final response was passed on, or the request is recorded without
	// What each side has ended; both: the stream is forgotten.
	clientEnded, serverEnded atomic.Bool
}

func newRelay2(s *session) *relay2 {
	r := &relay2{session: s, streams: map[uint32]*stream2{}, known: map[http2.SettingID]uint32{
		http2.SettingInitialWindowSize: 65535, http2.SettingMaxConcurrentStreams: maxStreams}}
	r.client2 = newSide(s.client, &deadlineReader{r}, &deadlineWriter{r, s.client}, s.proxy.limits.MaxHeaderBytes)
	return r
}

func isTimeout(err error) bool {
	timeout := net.Error(nil)
	return errors.As(err, &timeout) && timeout.Timeout()
}

func statusText(n int) string { return strconv.Itoa(n) }

func (r *relay2) open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.streams)
}

// setRead sets the client's read deadline; false: the connection is to end.
func (r *relay2) setRead(until time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost || r.leaving && len(r.streams) == 0 {
		return false
	}
	r.session.client.readUntil = until
	r.session.client.SetReadDeadline(until)
	return true
}

// run relays until either side ends the connection.
func (r *relay2) run(ctx context.Context) error {
	if _, err := io.CopyN(io.Discard, r.client2.in, int64(len(preface))); err != nil {
		return err
	}
	err := r.client2.write(func(f *http2.Framer) error { // before any other frame
		return f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(r.proxy.limits.MaxHeaderBytes)})
	})
	if err == nil {
		err = r.client2.flush()
	}
	if err == nil {
		stop := context.AfterFunc(r.proxy.drain.begun, r.leave)
		err = r.requests(ctx)
		stop()
	}
	if r.server != nil {
		r.server.Conn.Close()
	}
	r.responses.Wait()
	r.client2.flush()
	r.session.client.linger(r.proxy.now())
	r.unanswered()
	if err == io.EOF || isTimeout(err) {
		return nil
	}
	return err
}

// unfinished records a request whose response will not come.
func (r *relay2) unfinished(s *stream2, local bool) {
	if !s.answered.Swap(true) {
		r.finish(s.record, 0, local, r.proxy.now())
	}
}

// unanswered records requests whose response did not come.
func (r *relay2) unanswered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, s := range r.streams {
		r.unfinished(s, true)
		delete(r.streams, id)
	}
}

// requests reads the client's frames until it sends no more.
func (r *relay2) requests(ctx context.Context) error {
	first := true
	for {
		frame, err := r.client2.framer.ReadFrame()
		if err == nil && first {
			if _, ok := frame.(*http2.SettingsFrame); !ok {
				err = http2.ConnectionError(http2.ErrCodeProtocol)
			}
		}
		first = false
		if err == nil {
			err = r.clientFrame(ctx, frame)
		}
		if err = r.streamError(err); err == nil && r.client2.idle() {
			err = r.flush()
		}
		if err != nil {
			return r.goAway(err)
		}
	}
}

// streamError resets a stream that broke the protocol; other errors are of the connection.
func (r *relay2) streamError(err error) error {
	var broken http2.StreamError
	if !errors.As(err, &broken) {
		return err
	}
	r.mu.Lock()
	r.last = max(r.last, broken.StreamID)
	s := r.streams[broken.StreamID]
	r.mu.Unlock()
	r.forget(broken.StreamID)
	if s != nil {
		r.unfinished(s, true)
		if err := r.server2.writeReset(broken.StreamID, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return r.client2.writeReset(broken.StreamID, broken.Code)
}

// goAway tells the client why the connection ends.
func (r *relay2) goAway(err error) error {
	code := http2.ErrCodeNo
	var broken http2.ConnectionError
	switch {
	case errors.As(err, &broken):
		code = http2.ErrCode(broken)
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	}
	r.client2.write(func(f *http2.Framer) error { return f.WriteGoAway(r.last, code, nil) })
	r.client2.flush()
	return err
}

// flush sends what is written to both sides.
func (r *relay2) flush() error {
	if err := r.client2.flush(); err != nil || r.server2 == nil {
		return err
	}
	return r.server2.flush()
}

// forget forgets a stream that is reset.
func (r *relay2) forget(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, id)
	r.resets[r.reset%len(r.resets)] = id
	r.reset++
	r.endIfIdle()
}

// wasReset says whether a stream is among those that were reset last.
func (r *relay2) wasReset(id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.resets[:], id)
}

// find returns a stream. Streams that were never opened are an error of the connection.
func (r *relay2) find(id uint32) (*stream2, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id > r.last || id%2 == 0 {
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return r.streams[id], nil
}

// ended notes that a side has ended a stream, and forgets it if both have.
func (r *relay2) ended(id uint32, s *stream2, client bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if client {
		s.clientEnded.Store(true)
	} else {
		s.serverEnded.Store(true)
	}
	if s.clientEnded.Load() && s.serverEnded.Load() {
		delete(r.streams, id)
		r.endIfIdle()
	}
}

// connect opens the connection to the server and its goroutine.
func (r *relay2) connect(ctx context.Context, o *originating, host string) error {
	if r.protocol == "" && r.tls {
		r.protocol = "h2"
	}
	if err := r.dial(ctx, o, host); err != nil {
		return err
	}
	limit := r.proxy.limits.MaxHeaderBytes
	server := newSide(r.server, r.server, &deadlineWriter{r, r.server}, limit)
	settings := append([]http2.Setting{{ID: http2.SettingEnablePush, Val: 0},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(limit)}}, r.settings...)
	if _, err := server.out.WriteString(preface); err != nil {
		return err
	}
	if err := server.framer.WriteSettings(settings...); err != nil {
		return err
	}
	if err := server.writeWindow(0, r.credit); err != nil {
		return err
	}
	r.server2 = server
	r.responses.Go(r.respond)
	return nil
}

// trailers are a header section without pseudo-headers.
func trailers(frame *http2.MetaHeadersFrame) ([]hpack.HeaderField, bool) {
	for _, field := range frame.Fields {
		if kind := kindOf(field.Name); field.IsPseudo() || kind != fieldOther && kind != fieldContentType {
			return nil, false
		}
	}
	return frame.Fields, true
}
