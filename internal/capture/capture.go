// Package capture reads the frames that pass a device, in both directions.
package capture

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slotSize is the size of a slot in octets: a header of at most 80, and the first octets of a frame.
	slotSize = 2048
	// blockSize is the size of the pieces in which the kernel allocates a ring.
	blockSize = 1 << 16
	// slotsPerBlock divides the number of slots of a ring.
	slotsPerBlock = blockSize / slotSize
)

// Ring is an AF_PACKET socket (packet(7)) whose frames the kernel copies into slots while they pass. Without a ring, a
// socket has the pages of frames that it has not read yet in common with the node that receives them, which decrypts
// IPsec in place.
type Ring struct {
	file  *os.File
	slots []byte
	ended atomic.Bool // before the socket is closed
}

// Open captures a device of the thread's network namespace. slots is how many frames may wait to be read, a multiple of
// 32. prepare is called with the socket before the ring is made. It needs CAP_NET_RAW.
func Open(device string, slots int, prepare ...func(fd int) error) (*Ring, error) {
	r := &Ring{}
	var err error
	r.file, err = Socket(device, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
			return err
		}
		for _, p := range prepare {
			if err := p(fd); err != nil {
				return err
			}
		}
		err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
			Block_size: blockSize, Block_nr: uint32(slots / slotsPerBlock), Frame_size: slotSize,
			Frame_nr: uint32(slots),
		})
		if err == nil {
			r.slots, err = unix.Mmap(fd, 0, slots*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Socket opens an AF_PACKET socket that gets each frame of a device, once it is prepared.
func Socket(device string, prepare func(fd int) error) (*os.File, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("capture %s: %w", device, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("capture %s: %w", device, err)
	}
	f := os.NewFile(uintptr(fd), "capture of "+device)
	if err = prepare(fd); err == nil {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("capture %s: %w", device, err)
	}
	return f, nil
}

// Each calls f with each frame until the ring is closed, or the device is down. It is called once.
func (r *Ring) Each(f func(Slot)) error {
	defer func() { _ = unix.Munmap(r.slots) }()
	socket, err := r.file.SyscallConn()
	if err != nil {
		return err
	}
	for next := 0; ; next = (next + slotSize) % len(r.slots) {
		s := Slot(r.slots[next : next+slotSize])
		err := socket.Read(func(uintptr) bool { return s.filled() })
		if err != nil && (r.ended.Load() || !s.filled() && isDown(socket)) {
			return nil
		}
		if err != nil && !s.filled() {
			return err
		}
		f(s)
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

// Stats returns how many frames have passed since the last call, and how many of them the ring had no room for.
func (r *Ring) Stats() (frames, lost int, err error) {
	socket, err := r.file.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	failed := socket.Control(func(fd uintptr) {
		var stats *unix.TpacketStats
		if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			frames, lost = int(stats.Packets), int(stats.Drops)
		}
	})
	if err == nil {
		err = failed
	}
	return frames, lost, err
}

// Close ends the capture, and Each with it.
func (r *Ring) Close() error {
	r.ended.Store(true)
	return r.file.Close()
}

// Slot is a struct tpacket2_hdr (linux/if_packet.h) and the first octets of a frame.
type Slot []byte

// Offset is where in the slot the frame begins.
func (s Slot) Offset() int { return int(binary.NativeEndian.Uint16(s[12:])) }

// Length is the length of the frame on the device.
func (s Slot) Length() int { return int(binary.NativeEndian.Uint32(s[4:])) }

// Frame is the first octets of the frame. They are valid until the function that Each calls returns.
func (s Slot) Frame() []byte {
	size := int(binary.NativeEndian.Uint32(s[8:]))
	return s[s.Offset() : s.Offset()+size]
}

// Time is when the frame has passed.
func (s Slot) Time() time.Time {
	return time.Unix(int64(binary.NativeEndian.Uint32(s[16:])), int64(binary.NativeEndian.Uint32(s[20:])))
}

// filled reports whether the kernel has written a frame.
func (s Slot) filled() bool { return binary.NativeEndian.Uint32(s)&unix.TP_STATUS_USER != 0 }
