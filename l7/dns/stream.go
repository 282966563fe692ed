package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"myelin/l7/dns/message"
)

// protoTCP is TCP's protocol number.
const protoTCP = 6

// lengthLen is how long the length in front of a message is (RFC 1035, section 4.2.2).
const lengthLen = 2

// Stream passes the messages of a TCP connection between a client and a server, whose addresses are source and
// destination, until both have closed it, one fails, no message has arrived for idle (> 0), or the context ends.
// Clients may send queries before earlier ones are answered (RFC 7766, section 6.2.1.1). The connections are closed
// when it returns. Its error is nil if both ends have closed theirs.
func (e *Engine) Stream(ctx context.Context, source, destination netip.AddrPort, client, server net.Conn,
	idle time.Duration,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	closeBoth := sync.OnceFunc(func() {
		client.Close()
		server.Close()
	})
	defer closeBoth()
	defer context.AfterFunc(ctx, closeBoth)()
	timer := time.AfterFunc(idle, func() { cancel(errIdle{}) })
	defer timer.Stop()
	s := &stream{
		engine: e, flow: flow{client: source, server: destination, proto: protoTCP}, client: client, server: server,
		progress: func() { timer.Reset(idle) },
	}
	done := make(chan error, 1)
	go func() {
		err := s.copy(server, client, s.query)
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	err := s.copy(client, server, s.answer)
	if err != nil {
		cancel(err)
	}
	if err = errors.Join(err, <-done); err != nil {
		return fmt.Errorf("pass DNS of %s to %s by TCP: %w", source, destination, context.Cause(ctx))
	}
	return nil
}

type errIdle struct{}

func (errIdle) Error() string { return "no message has arrived for the idle time" }

type stream struct {
	engine         *Engine
	flow           flow
	client, server net.Conn
	progress       func()
	toClient       sync.Mutex // answers and refusals
}

// copy reads messages until the end of the stream, which it passes on.
func (s *stream) copy(to, from net.Conn, each func(framed []byte) error) error {
	var buffer []byte
	for {
		framed, err := readFramed(from, buffer)
		if err == io.EOF {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				return half.CloseWrite()
			}
			return to.Close()
		}
		if err != nil {
			return err
		}
		buffer = framed
		s.progress()
		if err := each(framed); err != nil {
			return err
		}
	}
}

// readFramed reads a message with its length in front, into the memory of buffer if it fits. io.EOF means that the
// stream ends before a message.
func readFramed(from io.Reader, buffer []byte) ([]byte, error) {
	var length [lengthLen]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := lengthLen + int(binary.BigEndian.Uint16(length[:]))
	if cap(buffer) < size {
		buffer = make([]byte, max(size, 512))
	}
	buffer = buffer[:size]
	copy(buffer, length[:])
	if _, err := io.ReadFull(from, buffer[lengthLen:]); err != nil {
		return nil, fmt.Errorf("read a DNS message: %w", io.ErrUnexpectedEOF)
	}
	return buffer, nil
}

// query passes a query on or refuses it. One that is not understood ends the connection, if rules apply.
func (s *stream) query(framed []byte) error {
	scratch := s.engine.scratch.Get().(*scratch)
	defer s.engine.scratch.Put(scratch)
	m := framed[lengthLen:]
	switch v, end := s.engine.query(scratch, &s.flow, m); v {
	case drop:
		return errors.New("a query is not understood")
	case refuse:
		m = message.Refuse(m, end, s.engine.current.Load().rejectCode)
		binary.BigEndian.PutUint16(framed, uint16(len(m)))
		return s.toTheClient(framed[:lengthLen+len(m)])
	}
	_, err := s.server.Write(framed)
	return err
}

func (s *stream) answer(framed []byte) error {
	scratch := s.engine.scratch.Get().(*scratch)
	s.engine.answer(scratch, &s.flow, framed[lengthLen:])
	s.engine.scratch.Put(scratch)
	return s.toTheClient(framed)
}

func (s *stream) toTheClient(framed []byte) error {
	s.toClient.Lock()
	defer s.toClient.Unlock()
	_, err := s.client.Write(framed)
	return err
}
