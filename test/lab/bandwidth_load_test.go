package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What is measured begins when queues are full.
const (
	rateAfter = 2500 * time.Millisecond
	rateFor   = 3 * time.Second
)

// saturation is connections that send as fast as they can, until stop is called.
type saturation struct {
	received *atomic.Int64 // bytes of data
	frames   float64       // bytes of frames by bytes of data
	stop     func()
}

// receiver is a socket.
type receiver interface {
	net.Conn
	syscall.Conn
}

// rateStreams connections fill the queue while a process waits for its turn: one alone has two packets in it.
const rateStreams = 8

// loadTCP has so many connections.
func (c *cluster) loadTCP(from, to string, family, streams int) (l saturation) {
	c.t.Helper()
	a, b := c.end(from), c.end(to)
	l.received = new(atomic.Int64)
	var conns []io.Closer
	l.stop = func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
	pages, err := filePages()
	if err != nil {
		c.t.Fatal(err)
	}
	segment := 0
	for range streams {
		client, server, err := connect(c.t.Context(), a, b, at(a.addr(family), 0), at(b.addr(family), 0))
		if err != nil {
			c.t.Fatal(err)
		}
		conns = append(conns, client, server)
		go readAll(server, l.received)
		raw, err := client.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) {
				segment, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			})
		}
		if err != nil || segment == 0 {
			c.t.Fatalf("segment of %d bytes: %v", segment, err)
		}
		go sendAll(c.t.Context(), client, pages)
	}
	const options = 12 // timestamps
	l.frames = float64(segment+20+options+headersOf(family)) / float64(segment)
	return l
}

// headersOf is the bytes of headers below layer 4.
func headersOf(family int) int {
	if family == 6 {
		return 14 + 40
	}
	return 14 + 20
}

// datagramSize is the bytes of data in each datagram of a load.
const datagramSize = 1200

// udpBuffer holds what is sent while a process waits for its turn.
const udpBuffer = 512 << 10

// loadUDP has one socket, which waits where its packets do, and gives the kernel so many datagrams at once. Its buffer
// has room for no more than may wait for a pod.
func (c *cluster) loadUDP(from, to string, family, batch, buffer int) saturation {
	c.t.Helper()
	client, server := c.datagrams(from, to, family, batch, buffer)
	go writeAll(c.t.Context(), client, make([]byte, batch*datagramSize))
	received := new(atomic.Int64)
	go readAll(server, received)
	return saturation{
		received: received, frames: float64(datagramSize+8+headersOf(family)) / datagramSize,
		stop: func() { client.Close(); server.Close() },
	}
}

// datagrams returns connected sockets that send and receive batches. That which sends holds so many bytes.
func (c *cluster) datagrams(from, to string, family, batch, buffer int) (client, server *net.UDPConn) {
	c.t.Helper()
	const segment, join = 103, 104 // UDP_SEGMENT, UDP_GRO
	sends := []option{intOption(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer)}
	receives := []option{intOption(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer)}
	if batch > 1 {
		sends = append(sends, intOption(unix.IPPROTO_UDP, segment, datagramSize))
		receives = append(receives, intOption(unix.IPPROTO_UDP, join, 1))
	}
	a, b := c.end(from), c.end(to)
	client, server, err := connectUDP(c.t.Context(), a, b, b.addr(family), sends, receives)
	if err != nil {
		c.t.Fatal(err)
	}
	return client, server
}

// rateTCP is that of frames, in bit/s.
func (c *cluster) rateTCP(from, to string, family int) float64 {
	c.t.Helper()
	l := c.loadTCP(from, to, family, rateStreams)
	defer l.stop()
	return rates(rateFor, l)[0]
}

// writeAll writes until the connection is closed.
func writeAll(ctx context.Context, to net.Conn, data []byte) {
	for ctx.Err() == nil {
		if _, err := to.Write(data); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// rates are those at which loads bring frames, in bit/s, in one span.
func rates(span time.Duration, loads ...saturation) []float64 {
	time.Sleep(rateAfter)
	first, list := time.Now(), make([]float64, len(loads))
	before := make([]int64, len(loads))
	for i, l := range loads {
		before[i] = l.received.Load()
	}
	time.Sleep(span)
	for i, l := range loads {
		list[i] = float64(l.received.Load()-before[i]) * 8 * l.frames / time.Since(first).Seconds()
	}
	return list
}

// readAll adds up what a connection brings, until it is closed. The kernel copies nothing of it (MSG_TRUNC): in the VM,
// each byte is an instruction.
func readAll(from receiver, bytes *atomic.Int64) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	buffer := make([]byte, 256<<10)
	if _, datagrams := from.(*net.UDPConn); datagrams {
		buffer = buffer[:1] // the length of the whole datagram is returned
	}
	_ = raw.Read(func(fd uintptr) (done bool) {
		for {
			n, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			switch {
			case err == unix.EAGAIN:
				return false
			case err == unix.EINTR:
				continue
			case err != nil || n == 0:
				return true
			}
			bytes.Add(int64(n))
		}
	})
}

// pageBytes is the length of a file in memory that is sent again and again.
const pageBytes = 1 << 20

// filePages makes it. The file goes when it is closed for lack of references.
func filePages() (*os.File, error) {
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "pages")
	if _, err = file.Write(make([]byte, pageBytes)); err != nil {
		file.Close()
		return nil, fmt.Errorf("fill a file in memory: %w", err)
	}
	return file, nil
}

// sendAll sends a file until the connection is closed, without copying it.
func sendAll(ctx context.Context, to *net.TCPConn, pages *os.File) {
	raw, err := to.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) (done bool) {
		for ctx.Err() == nil {
			var from int64
			_, err := unix.Sendfile(int(fd), int(pages.Fd()), &from, pageBytes)
			switch {
			case err == unix.EAGAIN:
				return false
			case err != nil && err != unix.EINTR:
				return true
			}
		}
		return true
	})
}
