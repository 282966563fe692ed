package httpproxy

import (
	"context"
	"fmt"

	"golang.org/x/net/http2"
)

// clientFrame handles a frame of the client.
func (r *relay2) clientFrame(ctx context.Context, frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return r.clientHeaders(ctx, f)
	case *http2.DataFrame:
		return r.clientData(f)
	case *http2.SettingsFrame:
		return r.clientSettings(f)
	case *http2.WindowUpdateFrame:
		return r.clientWindow(f)
	case *http2.RSTStreamFrame:
		return r.clientReset(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PingFrame:
		return pong(r.client2, f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// pong answers a ping at once.
func pong(d *side, ping *http2.PingFrame) error {
	if ping.IsAck() {
		return nil
	}
	return d.write(func(f *http2.Framer) error { return f.WritePing(true, ping.Data) })
}

func (r *relay2) clientHeaders(ctx context.Context, f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	r.mu.Lock()
	opened := id > r.last
	r.last = max(r.last, id)
	s, streams, draining := r.streams[id], len(r.streams), r.draining
	r.mu.Unlock()
	if !opened {
		return r.clientTrailers(id, s, f)
	}
	if streams >= maxStreams || draining {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if f.Truncated {
		return r.reply(id, replyTo(headerTooLarge), false, f.StreamEnded())
	}
	h, p := parseRequest2(f, r.serverName)
	if p == malformed {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return r.request(ctx, id, h, p, f.StreamEnded())
}

// request decides about a request and forwards it.
func (r *relay2) request(ctx context.Context, id uint32, h *head2, p problem, ended bool) error {
	now := r.proxy.now()
	headRequest := h.request.Method == "HEAD"
	if p != 0 {
		local := replyTo(p)
		r.finish(r.record(&h.request, "HTTP/2", &decision{denied: -1}, now), local.status, true, now)
		return r.reply(id, local, headRequest, ended)
	}
	d := r.decide(&h.request, h, h.headers)
	record := r.record(&h.request, "HTTP/2", &d, now)
	if !d.allowed {
		denied := reply{status: 403, body: accessDenied}
		if h.grpc {
			denied.grpc = grpcPermissionDenied
		}
		r.finish(record, denied.recorded(), true, now)
		return r.reply(id, denied, headRequest, ended)
	}
	s := &stream2{record: record, head: headRequest, grpc: h.grpc}
	s.clientEnded.Store(ended)
	if r.server2 == nil {
		if err := r.connect(ctx, d.originating, h.request.Host); err != nil {
			if replyErr := r.unavailable(id, s); replyErr != nil {
				return replyErr
			}
			return err
		}
	}
	r.mu.Lock()
	r.streams[id] = s
	r.mu.Unlock()
	return r.server2.writeHeaders(id, h.forwarded(), ended)
}

// reply answers a request with a response of the proxy.
func (r *relay2) reply(id uint32, local reply, headRequest, ended bool) error {
	if !ended {
		r.forget(id)
	}
	data, err := r.client2.reply(id, local, headRequest, ended)
	r.owed.Add(int64(data))
	return err
}

// unavailable answers a request that the server has not answered.
func (r *relay2) unavailable(id uint32, s *stream2) error {
	local := reply{status: 503, body: upstreamConnectFailed}
	if s.grpc {
		local.grpc = grpcUnavailable
	}
	if !s.answered.Swap(true) {
		r.finish(s.record, local.recorded(), true, r.proxy.now())
	}
	return r.reply(id, local, s.head, s.clientEnded.Load())
}

func (r *relay2) clientTrailers(id uint32, s *stream2, f *http2.MetaHeadersFrame) error {
	if s == nil && !r.wasReset(id) {
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	if s == nil || s.clientEnded.Load() {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	fields, ok := trailers(f)
	if !ok || !f.StreamEnded() || f.Truncated {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if err := r.server2.writeHeaders(id, fields, true); err != nil {
		return err
	}
	r.ended(id, s, true)
	return nil
}

func (r *relay2) clientData(f *http2.DataFrame) error {
	s, err := r.find(f.StreamID)
	if err != nil {
		return err
	}
	if s == nil || s.clientEnded.Load() {
		// The server does not see these bytes and grants none for them.
		if err := r.client2.writeWindow(0, f.Length); err != nil {
			return err
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if err := passData(f, r.client2, r.server2); err != nil {
		return err
	}
	if f.StreamEnded() {
		r.ended(f.StreamID, s, true)
	}
	return nil
}

// passData passes data on without padding, and credits the padding.
func passData(f *http2.DataFrame, from, to *side) error {
	if padding := f.Length - uint32(len(f.Data())); padding > 0 {
		if err := from.writeWindow(0, padding); err != nil {
			return err
		}
		if err := from.writeWindow(f.StreamID, padding); err != nil {
			return err
		}
	}
	return to.writeData(f.StreamID, f.StreamEnded(), f.Data())
}

// clientSettings passes settings to the server and acknowledges them at once: some servers acknowledge several
// together, so that theirs cannot be passed back.
func (r *relay2) clientSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if r.client2.swallow || r.server2 == nil {
			r.client2.swallow = false
			return nil
		}
		return r.server2.write(func(f *http2.Framer) error { return f.WriteSettingsAck() })
	}
	if err := r.checkSettings(f, r.client2); err != nil {
		return err
	}
	settings := settingsFor(f, true)
	if len(settings) > 0 {
		r.settings = settings[len(settings)-1:]
		if r.server2 != nil {
			err := r.server2.write(func(f *http2.Framer) error { return f.WriteSettings(r.settings...) })
			if err != nil {
				return err
			}
		}
	}
	return r.client2.write(func(f *http2.Framer) error { return f.WriteSettingsAck() })
}

// checkSettings refuses values that are not valid, and adapts to the size of the peer's HPACK table.
func (r *relay2) checkSettings(f *http2.SettingsFrame, d *side) error {
	return f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		if s.ID == http2.SettingHeaderTableSize {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.encoder.SetMaxDynamicTableSizeLimit(min(s.Val, headerTable))
		}
		return nil
	})
}

func (r *relay2) clientWindow(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		increment := f.Increment - uint32(min(r.owed.Load(), int64(f.Increment)))
		r.owed.Add(int64(increment) - int64(f.Increment))
		if r.server2 != nil {
			return r.server2.writeWindow(0, increment)
		}
		if r.credit += increment; r.credit > 1<<31-1-65535 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return nil
	}
	s, err := r.find(f.StreamID)
	if err != nil || s == nil {
		return err
	}
	return r.server2.writeWindow(f.StreamID, f.Increment)
}

func (r *relay2) clientReset(f *http2.RSTStreamFrame) error {
	s, err := r.find(f.StreamID)
	if err != nil || s == nil {
		return err
	}
	r.forget(f.StreamID)
	r.unfinished(s, true)
	if err := r.server2.writeReset(f.StreamID, f.ErrCode); err != nil {
		return fmt.Errorf("reset stream: %w", err)
	}
	return nil
}
