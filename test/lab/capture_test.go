package labtest

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// capture reads all frames on eth0 of each node, in both directions, until seen is called, which returns how many had
// each text in their first octets. A frame that the kernel had no room for fails the test. The kernel copies frames
// into a ring while they pass: without one, a socket has the pages of frames that it has not read yet in common with
// the node that receives them, which decrypts IPsec in place.
func (c *cluster) capture(texts ...[]byte) (seen func() []int) {
	c.t.Helper()
	counts := make([]atomic.Int64, len(texts))
	var ended atomic.Bool // before the sockets are closed
	var g errgroup.Group
	var files []*os.File
	for _, n := range c.Nodes() {
		var f *os.File
		var ring []byte
		check(c.t, n.Do(func() (err error) {
			f, ring, err = openRing("eth0")
			return err
		}))
		files = append(files, f)
		g.Go(func() error { return countTexts(f, ring, texts, counts, &ended) })
	}
	closeAll := func() {
		ended.Store(true)
		for _, f := range files {
			f.Close()
		}
	}
	c.t.Cleanup(closeAll)
	return func() []int {
		time.Sleep(patience(100 * time.Millisecond)) // what is still in the sockets
		for _, f := range files {
			c.noneLost(f)
		}
		closeAll()
		if err := g.Wait(); err != nil {
			c.t.Errorf("capture: %v", err)
		}
		list := make([]int, len(texts))
		for i := range counts {
			list[i] = int(counts[i].Load())
		}
		return list
	}
}

// The ring of a capture: slots, each of which has the first octets of a frame.
const (
	slotSize  = 2048
	slotCount = 1 << 14
)

// openRing opens a capture whose frames are in a ring.
func openRing(device string) (f *os.File, ring []byte, err error) {
	f, err = openCapture(device, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
			return err
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

// countTexts counts frames of the ring until the capture has ended and the socket is closed. A slot begins with a
// struct tpacket2_hdr (linux/if_packet.h).
func countTexts(f *os.File, ring []byte, texts [][]byte, counts []atomic.Int64, ended *atomic.Bool) error {
	defer func() { _ = unix.Munmap(ring) }()
	socket, err := f.SyscallConn()
	if err != nil {
		return err
	}
	for next := 0; ; next = (next + 1) % slotCount {
		slot := ring[next*slotSize : (next+1)*slotSize]
		err := socket.Read(func(uintptr) bool { return binary.NativeEndian.Uint32(slot)&unix.TP_STATUS_USER != 0 })
		if err != nil && ended.Load() {
			return nil
		}
		if err != nil {
			return err
		}
		begin, size := int(binary.NativeEndian.Uint16(slot[12:])), int(binary.NativeEndian.Uint32(slot[8:]))
		for i, text := range texts {
			if bytes.Contains(slot[begin:begin+size], text) {
				counts[i].Add(1)
			}
		}
		binary.NativeEndian.PutUint32(slot, unix.TP_STATUS_KERNEL)
	}
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
