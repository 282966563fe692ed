package labtest

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// tap reads all frames on eth0 of places, in both directions, and counts those that have each text in their first
// octets. A frame that the kernel had no room for fails the test. The kernel copies frames into a ring while they pass:
// without one, a socket has the pages of frames that it has not read yet in common with the node that receives them,
// which decrypts IPsec in place.
type tap struct {
	*cluster
	texts [][]byte
	keep  func(place string, frame []byte) // is called with each frame, if it is not nil
	group errgroup.Group
	ended atomic.Bool // before the sockets are closed
	files []*os.File
	at    map[string][]atomic.Int64 // counts by place
}

// tap opens a tap on all nodes.
func (c *cluster) tap(texts ...[]byte) *tap { return c.keepingTap(nil, texts...) }

// keepingTap is tap, and has each frame given to keep, which is safe for concurrent use.
func (c *cluster) keepingTap(keep func(place string, frame []byte), texts ...[]byte) *tap {
	c.t.Helper()
	t := &tap{cluster: c, texts: texts, keep: keep, at: map[string][]atomic.Int64{}}
	c.t.Cleanup(t.close)
	for _, n := range c.Nodes() {
		t.add(n.Name(), n)
	}
	return t
}

// add reads the frames of a place, too; again if it has another eth0.
func (t *tap) add(name string, p place) {
	t.t.Helper()
	var f *os.File
	var ring []byte
	check(t.t, p.Do(func() (err error) {
		f, ring, err = openRing("eth0")
		return err
	}))
	t.files = append(t.files, f)
	if t.at[name] == nil {
		t.at[name] = make([]atomic.Int64, len(t.texts))
	}
	counts := t.at[name]
	t.group.Go(func() error { return t.read(name, f, ring, counts) })
}

// seen is how many frames had a text until now.
func (t *tap) seen(text int) (n int) {
	for name := range t.at {
		n += t.seenAt(name, text)
	}
	return n
}

// seenAt is seen, of one place.
func (t *tap) seenAt(name string, text int) int { return int(t.at[name][text].Load()) }

func (t *tap) close() {
	t.ended.Store(true)
	for _, f := range t.files {
		f.Close()
	}
}

// end ends it when it has read what is in the sockets still.
func (t *tap) end() {
	t.t.Helper()
	time.Sleep(patience(100 * time.Millisecond))
	for _, f := range t.files {
		t.noneLost(f)
	}
	t.close()
	if err := t.group.Wait(); err != nil {
		t.t.Errorf("capture: %v", err)
	}
}

// capture opens a tap on all nodes until seen is called, which returns how many frames had each text.
func (c *cluster) capture(texts ...[]byte) (seen func() []int) {
	c.t.Helper()
	t := c.tap(texts...)
	return func() (list []int) {
		t.end()
		for i := range texts {
			list = append(list, t.seen(i))
		}
		return list
	}
}

// The ring of a capture: slots, each of which has the first octets of a frame.
const (
	slotSize  = 2048
	slotCount = 1 << 14
)

// openRing opens a capture whose frames are in a ring, once the socket is prepared.
func openRing(device string, prepare ...func(fd int) error) (f *os.File, ring []byte, err error) {
	f, err = openCapture(device, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
			return err
		}
		for _, p := range prepare {
			if err := p(fd); err != nil {
				return err
			}
		}
		const block = 1 << 16
		err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
			Block_size: block, Block_nr: slotCount * slotSize / block, Frame_size: slotSize, Frame_nr: slotCount,
		})
		if err == nil {
			ring, err = unix.Mmap(fd, 0, slotCount*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		return err
	})
	return f, ring, err
}

// receiveBuffer has room for frames that are not read yet.
func receiveBuffer(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
}

// openCapture opens a socket in the thread's network namespace that gets each frame of a device once it is prepared.
func openCapture(device string, prepare func(fd int) error) (*os.File, error) {
	all := int(bigEndian(unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "capture of "+device)
	index, err := indexOf(device)
	if err == nil {
		err = prepare(fd)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index})
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

// indexOf is the index of a device in the thread's network namespace.
func indexOf(device string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(device)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}

// read reads the frames of a place.
func (t *tap) read(place string, f *os.File, ring []byte, counts []atomic.Int64) error {
	return eachSlot(f, ring, &t.ended, func(s ringSlot) {
		frame := s.frame()
		for i, text := range t.texts {
			if bytes.Contains(frame, text) {
				counts[i].Add(1)
			}
		}
		if t.keep != nil {
			t.keep(place, frame)
		}
	})
}

// ringSlot is a struct tpacket2_hdr (linux/if_packet.h) and the first octets of a frame.
type ringSlot []byte

// frame is the first octets.
func (s ringSlot) frame() []byte {
	begin, size := int(binary.NativeEndian.Uint16(s[12:])), int(binary.NativeEndian.Uint32(s[8:]))
	return s[begin : begin+size]
}

// filled reports whether the kernel has written a frame.
func (s ringSlot) filled() bool { return binary.NativeEndian.Uint32(s)&unix.TP_STATUS_USER != 0 }

// eachSlot calls fn with each frame of the ring until the capture has ended and the socket is closed, or the device is
// gone.
func eachSlot(f *os.File, ring []byte, ended *atomic.Bool, fn func(ringSlot)) error {
	defer func() { _ = unix.Munmap(ring) }()
	socket, err := f.SyscallConn()
	if err != nil {
		return err
	}
	for next := 0; ; next = (next + 1) % slotCount {
		s := ringSlot(ring[next*slotSize : (next+1)*slotSize])
		err := socket.Read(func(uintptr) bool { return s.filled() })
		if err != nil && (ended.Load() || !s.filled() && isDown(socket)) {
			return nil
		}
		if err != nil && !s.filled() {
			return err
		}
		fn(s)
		binary.NativeEndian.PutUint32(s, unix.TP_STATUS_KERNEL)
	}
}

// isDown reports whether the socket's device has been set down or removed.
func isDown(socket syscall.RawConn) (down bool) {
	_ = socket.Control(func(fd uintptr) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		down = err == nil && code == int(unix.ENETDOWN)
	})
	return down
}

func (c *cluster) noneLost(f *os.File) {
	c.t.Helper()
	raw, err := f.SyscallConn()
	check(c.t, err)
	check(c.t, raw.Control(func(fd uintptr) {
		stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil || stats.Drops > 0 || stats.Packets == 0 {
			c.t.Errorf("the capture had %+v: %v", stats, err)
		}
	}))
}
