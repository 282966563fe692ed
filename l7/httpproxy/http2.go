package httpproxy

import (
	"bufio"
	"bytes"
	"io"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	maxStreams  = 250     // of one connection
	frameSize   = 16384   // the largest frame, which each peer must accept (RFC 9113, section 4.2)
	headerTable = 4096    // of HPACK, for each direction
	bufioSize   = 1 << 10 // an idle connection has four; larger frames bypass them
)

// side is the client's or the server's half of a connection in HTTP/2. One goroutine reads frames; both write.
type side struct {
	stream *stream
	in     *bufio.Reader
	framer *http2.Framer

	mu      sync.Mutex // writing
	out     *bufio.Writer
	encoder *hpack.Encoder
	encoded bytes.Buffer
	// swallow: the next acknowledgement of settings is of the proxy's own.
	swallow bool
}

func newSide(s *stream, in io.Reader, out io.Writer, headerBytes int) *side {
	d := &side{stream: s, in: bufio.NewReaderSize(in, bufioSize), out: bufio.NewWriterSize(out, bufioSize),
		swallow: true}
	d.encoder = hpack.NewEncoder(&d.encoded)
	d.framer = http2.NewFramer(d.out, d.in)
	d.framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	d.framer.MaxHeaderListSize = uint32(headerBytes)
	d.framer.SetMaxReadFrameSize(frameSize)
	d.framer.SetReuseFrames()
	return d
}

// write runs f, which writes frames, without others between them.
func (d *side) write(f func(*http2.Framer) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f(d.framer)
}

// flush sends what is written.
func (d *side) flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Flush()
}

// idle says whether nothing more has arrived, so that what is written must be flushed.
func (d *side) idle() bool { return d.in.Buffered() == 0 }

// writeHeaders encodes a header section, in as many frames as it needs.
func (d *side) writeHeaders(id uint32, fields []hpack.HeaderField, end bool) error {
	return d.write(func(framer *http2.Framer) error {
		d.encoded.Reset()
		for _, field := range fields {
			if err := d.encoder.WriteField(field); err != nil {
				return err
			}
		}
		block := d.encoded.Bytes()
		first := block[:min(len(block), frameSize)]
		block = block[len(first):]
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end,
			EndHeaders: len(block) == 0})
		for err == nil && len(block) > 0 {
			next := block[:min(len(block), frameSize)]
			block = block[len(next):]
			err = framer.WriteContinuation(id, len(block) == 0, next)
		}
		return err
	})
}

func (d *side) writeReset(id uint32, code http2.ErrCode) error {
	return d.write(func(f *http2.Framer) error { return f.WriteRSTStream(id, code) })
}

func (d *side) writeWindow(id, increment uint32) error {
	if increment == 0 {
		return nil
	}
	return d.write(func(f *http2.Framer) error { return f.WriteWindowUpdate(id, increment) })
}

func (d *side) writeData(id uint32, end bool, data []byte) error {
	return d.write(func(f *http2.Framer) error { return f.WriteData(id, end, data) })
}

// reply answers a request with a response of the proxy. If the request has not ended, it is reset: its body is not
// needed (RFC 9113, section 8.1). It returns the bytes of data that it sent.
func (d *side) reply(id uint32, r reply, headRequest, ended bool) (data int, _ error) {
	fields := []hpack.HeaderField{{Name: ":status", Value: statusText(r.recorded())}}
	if r.grpc != "" {
		fields = append(fields, hpack.HeaderField{Name: "content-type", Value: "application/grpc"},
			hpack.HeaderField{Name: "grpc-status", Value: r.grpc},
			hpack.HeaderField{Name: "grpc-message", Value: grpcMessage(r.grpc)})
	} else {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: statusText(len(r.body))},
			hpack.HeaderField{Name: "content-type", Value: "text/plain"})
	}
	empty := r.grpc != "" || headRequest || r.body == ""
	if err := d.writeHeaders(id, fields, empty); err != nil {
		return 0, err
	}
	if !empty {
		data = len(r.body)
		if err := d.writeData(id, true, []byte(r.body)); err != nil {
			return data, err
		}
	}
	if ended {
		return data, nil
	}
	return data, d.writeReset(id, http2.ErrCodeNo)
}

// settingsFor are those of one side that the other may know. Frame sizes and HPACK tables are each connection's own,
// and the proxy relays no pushes.
func settingsFor(frame *http2.SettingsFrame, initial bool) []http2.Setting {
	var settings []http2.Setting
	frame.ForeachSetting(func(s http2.Setting) error {
		if s.ID == http2.SettingInitialWindowSize || s.ID == http2.SettingMaxConcurrentStreams && !initial {
			settings = append(settings, s)
		}
		return nil
	})
	return settings
}

// deadlineReader reads from the client within the idle timeout, which does not pass while streams are open.
type deadlineReader struct{ r *relay2 }

// deadlineWriter renews the write deadline.
type deadlineWriter struct {
	r *relay2
	s *stream
}

func (w *deadlineWriter) Write(b []byte) (int, error) {
	limits := &w.r.proxy.limits
	return len(b), w.s.write(b, w.r.proxy.now(), limits.IdleTimeout)
}

func (d *deadlineReader) Read(b []byte) (int, error) {
	s, idle := d.r.session.client, d.r.proxy.limits.IdleTimeout
	for {
		now := d.r.proxy.now()
		if left := s.readUntil.Sub(now); left < idle-idle/8 || left > idle {
			if !d.r.setRead(now.Add(idle)) {
				return 0, io.EOF
			}
		}
		n, err := s.Read(b)
		if !isTimeout(err) || d.r.open() == 0 {
			return n, err
		}
		s.readUntil = time.Time{}
	}
}
