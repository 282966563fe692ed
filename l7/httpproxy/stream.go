package httpproxy

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const bufferSize = 16 << 10

// buffers is a pool of buffers of bufferSize bytes.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// put takes a buffer back. Those that grew are left to the garbage collector.
func (b *buffers) put(buffer []byte) {
	if cap(buffer) == bufferSize {
		b.pool.Put((*[bufferSize]byte)(buffer[:bufferSize]))
	}
}

// stream is one side of a connection with what was read from it and is not consumed yet. While nothing is, it has no
// buffer: it takes one when bytes have arrived.
type stream struct {
	net.Conn
	pool *buffers
	raw  syscall.RawConn // nil if the connection is no socket
	buf  []byte
	// What is not consumed is buf[begin:end].
	begin, end int
	first      [1]byte
	// readUntil and writeUntil are deadlines, which are renewed when an eighth of their time has passed.
	readUntil, writeUntil time.Time

	onReadable func(fd uintptr) bool
	n          int
	err        error
}

func newStream(conn net.Conn, pool *buffers) *stream {
	s := &stream{pool: pool}
	s.use(conn)
	return s
}

// use makes a connection the stream's, which has no deadlines yet.
func (s *stream) use(conn net.Conn) {
	s.Conn, s.readUntil, s.writeUntil = conn, time.Time{}, time.Time{}
	if socket, ok := conn.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			s.raw = raw
			s.onReadable = s.readable
		}
	}
}

// hold puts bytes that were read elsewhere into the empty buffer.
func (s *stream) hold(b []byte) {
	if len(b) > bufferSize {
		s.buf, s.begin, s.end = b, 0, len(b)
	} else if len(b) > 0 {
		s.buf = s.pool.get()
		s.begin, s.end = 0, copy(s.buf, b)
	}
}

// bytes are those that are not consumed.
func (s *stream) bytes() []byte { return s.buf[s.begin:s.end] }

// consume drops the first n bytes.
func (s *stream) consume(n int) {
	if s.begin += n; s.begin == s.end {
		s.release()
	}
}

// release gives the buffer back.
func (s *stream) release() {
	if s.buf != nil {
		s.pool.put(s.buf)
	}
	s.buf, s.begin, s.end = nil, 0, 0
}

// fill reads at least one byte more. Bytes that are not consumed may move.
func (s *stream) fill() error {
	if s.buf != nil && s.end == len(s.buf) {
		s.makeRoom()
	}
	if s.raw == nil {
		return s.fillSecure()
	}
	if err := s.raw.Read(s.onReadable); err != nil {
		return err
	}
	s.end += s.n
	return s.err
}

// fillSecure reads from TLS, which keeps what has arrived: the first byte is waited for without a buffer.
func (s *stream) fillSecure() error {
	into := s.first[:]
	if s.buf != nil {
		into = s.buf[s.end:]
	}
	n, err := s.Conn.Read(into)
	if n == 0 {
		return err
	}
	if s.buf == nil {
		s.buf = s.pool.get()
		s.buf[0] = s.first[0]
	}
	s.end += n
	return nil
}

func (s *stream) makeRoom() {
	if s.begin > 0 {
		s.end = copy(s.buf, s.bytes())
		s.begin = 0
		return
	}
	larger := make([]byte, 2*len(s.buf))
	copy(larger, s.buf)
	s.pool.put(s.buf)
	s.buf = larger
}

// readable reads once. It returns false to be called again when there is something to read.
func (s *stream) readable(fd uintptr) bool {
	if s.buf == nil {
		s.buf = s.pool.get()
	}
	for {
		n, err := syscall.Read(int(fd), s.buf[s.end:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			if s.begin == s.end {
				s.release()
			}
			return false
		case err != nil:
			s.n, s.err = 0, os.NewSyscallError("read", err)
		case n == 0:
			s.n, s.err = 0, io.EOF
		default:
			s.n, s.err = n, nil
		}
		return true
	}
}

// write writes all bytes, within the idle timeout.
func (s *stream) write(b []byte, now time.Time, idle time.Duration) error {
	if s.writeUntil.Sub(now) < idle-idle/8 {
		s.writeUntil = now.Add(idle)
		if err := s.Conn.SetWriteDeadline(s.writeUntil); err != nil {
			return err
		}
	}
	_, err := s.Conn.Write(b)
	return err
}

// Read reads what is not consumed first.
func (s *stream) Read(b []byte) (int, error) {
	if s.begin < s.end {
		n := copy(b, s.bytes())
		s.consume(n)
		return n, nil
	}
	return s.Conn.Read(b)
}

// closeWrite ends this side's bytes and leaves the other direction open where the connection can do so.
func (s *stream) closeWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Conn.Close()
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 10
)

// linger ends the stream and reads what the peer still sends, for a while, so that a reset does not destroy the last
// response on its way (RFC 9112, section 9.6).
func (s *stream) linger(now time.Time) {
	if s.closeWrite() != nil || s.Conn.SetReadDeadline(now.Add(lingerTime)) != nil {
		return
	}
	for read := 0; read < lingerBytes; {
		s.release()
		if s.fill() != nil {
			return
		}
		read += s.end
	}
}
