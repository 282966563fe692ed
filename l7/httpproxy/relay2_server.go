package httpproxy

import (
	"time"

	"golang.org/x/net/http2"
)

// respond passes the server's frames on, in the goroutine of the server, until there are no more. What is not
// answered then is answered by the proxy.
func (r *relay2) respond() {
	for {
		frame, err := r.server2.framer.ReadFrame()
		if err == nil {
			err = r.serverFrame(frame)
		}
		if err == nil && r.server2.idle() {
			err = r.flush()
		}
		if err != nil {
			break
		}
	}
	r.mu.Lock()
	open := r.streams
	r.streams = map[uint32]*stream2{}
	last := r.last
	r.mu.Unlock()
	for id, s := range open {
		if s.answered.Load() {
			r.client2.writeReset(id, http2.ErrCodeInternal)
		} else {
			r.unavailable(id, s)
		}
	}
	r.client2.write(func(f *http2.Framer) error { return f.WriteGoAway(last, http2.ErrCodeNo, nil) })
	r.client2.flush()
	r.server.Conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	r.session.client.SetReadDeadline(time.Unix(1, 0)) // wakes the client's goroutine
}

// serverFrame handles a frame of the server.
func (r *relay2) serverFrame(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return r.serverHeaders(f)
	case *http2.DataFrame:
		return r.serverData(f)
	case *http2.SettingsFrame:
		return r.serverSettings(f)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 || r.has(f.StreamID) != nil {
			return r.client2.writeWindow(f.StreamID, f.Increment)
		}
	case *http2.RSTStreamFrame:
		return r.serverReset(f)
	case *http2.PingFrame:
		return pong(r.server2, f)
	case *http2.GoAwayFrame:
		r.mu.Lock()
		r.draining = true
		r.mu.Unlock()
		return r.client2.write(func(framer *http2.Framer) error {
			return framer.WriteGoAway(f.LastStreamID, f.ErrCode, f.DebugData())
		})
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// has returns a stream that is open, or nil.
func (r *relay2) has(id uint32) *stream2 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams[id]
}

func (r *relay2) serverHeaders(f *http2.MetaHeadersFrame) error {
	s := r.has(f.StreamID)
	if s == nil {
		return nil
	}
	if f.Truncated {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if status := f.PseudoValue("status"); !s.answered.Load() {
		if len(status) != 3 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if status[0] != '1' {
			code := int(status[0]-'0')*100 + int(status[1]-'0')*10 + int(status[2]-'0')
			if !s.answered.Swap(true) {
				r.finish(s.record, code, false, r.proxy.now())
			}
		}
	}
	if err := r.client2.writeHeaders(f.StreamID, f.Fields, f.StreamEnded()); err != nil {
		return err
	}
	if f.StreamEnded() {
		r.ended(f.StreamID, s, false)
	}
	return nil
}

func (r *relay2) serverData(f *http2.DataFrame) error {
	s := r.has(f.StreamID)
	if s == nil {
		return r.server2.writeWindow(0, f.Length)
	}
	if err := passData(f, r.server2, r.client2); err != nil {
		return err
	}
	if f.StreamEnded() {
		r.ended(f.StreamID, s, false)
	}
	return nil
}

// serverSettings passes settings that change something to the client, whose acknowledgement is passed back.
func (r *relay2) serverSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if err := r.checkSettings(f, r.server2); err != nil {
		return err
	}
	var settings []http2.Setting
	for _, s := range settingsFor(f, false) {
		if s.ID == http2.SettingMaxConcurrentStreams {
			s.Val = min(s.Val, maxStreams)
		}
		if r.known[s.ID] != s.Val {
			r.known[s.ID] = s.Val
			settings = append(settings, s)
		}
	}
	if len(settings) == 0 {
		return r.server2.write(func(f *http2.Framer) error { return f.WriteSettingsAck() })
	}
	return r.client2.write(func(f *http2.Framer) error { return f.WriteSettings(settings...) })
}

func (r *relay2) serverReset(f *http2.RSTStreamFrame) error {
	s := r.has(f.StreamID)
	if s == nil {
		return nil
	}
	r.forget(f.StreamID)
	r.unfinished(s, false)
	return r.client2.writeReset(f.StreamID, f.ErrCode)
}
