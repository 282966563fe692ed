package labtest

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/internal/capture"
)

// wirePacket is a packet that came by a wire. A large one of TCP or UDP (GSO) stands for frames that follow each other.
type wirePacket struct {
	at     time.Time
	bytes  int // of its frames
	frames int
}

// wire records the packets that come to a node by eth0.
type wire struct {
	c     *cluster
	ring  *capture.Ring
	group errgroup.Group

	mu   sync.Mutex
	from map[netip.Addr][]wirePacket
}

// wire begins to record the packets that come to a node by eth0, with the kernel's timestamps.
func (c *cluster) wire(node string) *wire { return c.wireAt(c.Node(node)) }

// wireAt is wire of any place.
func (c *cluster) wireAt(p place) *wire {
	c.t.Helper()
	w := &wire{c: c, from: map[netip.Addr][]wirePacket{}}
	check(c.t, p.Do(func() (err error) {
		w.ring, err = capture.Open("eth0", slots, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
		})
		return err
	}))
	w.group.Go(func() error { return w.ring.Each(w.add) })
	c.t.Cleanup(func() { w.ring.Close() })
	return w
}

// stop ends the recording, and returns packets by their source. One that the kernel had no room for fails the test.
func (w *wire) stop() map[netip.Addr][]wirePacket {
	w.c.t.Helper()
	time.Sleep(patience(100 * time.Millisecond)) // what is still in the ring
	w.c.noneLost(w.ring)
	w.ring.Close()
	if err := w.group.Wait(); err != nil {
		w.c.t.Errorf("record the packets of eth0: %v", err)
	}
	return w.from
}

// add records a packet of TCP or UDP. A struct virtio_net_hdr, whose third field is the GSO size, precedes its frame.
func (w *wire) add(s capture.Slot) {
	const virtio = 10
	length, gso := s.Length(), int(binary.NativeEndian.Uint16(s[s.Offset()-virtio+4:]))
	source, headers := headersIn(s.Frame())
	if !source.IsValid() {
		return
	}
	p := wirePacket{bytes: length, frames: 1}
	if gso > 0 && length > headers {
		p.frames = (length - headers + gso - 1) / gso
		p.bytes += (p.frames - 1) * headers
	}
	p.at = s.Time()
	w.mu.Lock()
	w.from[source] = append(w.from[source], p)
	w.mu.Unlock()
}

// headersIn returns the source of a frame and the length of its headers; no address: it is not of TCP or UDP.
func headersIn(frame []byte) (source netip.Addr, headers int) {
	source, _, proto, l4 := outer(frame)
	switch headers = len(frame) - len(l4); {
	case proto == unix.IPPROTO_TCP && len(l4) > 12:
		return source, headers + int(l4[12]>>4)*4
	case proto == unix.IPPROTO_UDP:
		return source, headers + 8
	}
	return netip.Addr{}, 0
}

// within are the packets of a span.
func within(packets []wirePacket, from time.Time, span time.Duration) (list []wirePacket) {
	for _, p := range packets {
		if !p.at.Before(from) && p.at.Before(from.Add(span)) {
			list = append(list, p)
		}
	}
	return list
}

// wireRate is the rate of packets that follow each other as fast as they may, in bit/s: each one takes the time until
// the next, so that the last one does not count.
func wireRate(packets []wirePacket) float64 {
	if len(packets) < 2 {
		return 0
	}
	bytes, last := 0, len(packets)-1
	for _, p := range packets[:last] {
		bytes += p.bytes
	}
	return float64(bytes) * 8 / packets[last].at.Sub(packets[0].at).Seconds()
}
