package labtest

import (
	"bytes"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// capture reads all frames on eth0 of each node, in both directions, until seen is called, which returns how many had
// each text. A frame that the kernel had no room for fails the test.
func (c *cluster) capture(texts ...[]byte) (seen func() []int) {
	c.t.Helper()
	counts := make([]atomic.Int64, len(texts))
	var g errgroup.Group
	var files []*os.File
	for _, n := range c.Nodes() {
		var f *os.File
		check(c.t, n.Do(func() (err error) {
			f, err = openCapture("eth0")
			return err
		}))
		files = append(files, f)
		g.Go(func() error { return countTexts(f, texts, counts) })
	}
	closeAll := func() {
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

// openCapture opens a socket in the thread's network namespace that gets each frame of a device.
func openCapture(device string) (*os.File, error) {
	all := int(bigEndian(unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "capture of "+device)
	index, err := indexOf(device)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
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

func countTexts(f *os.File, texts [][]byte, counts []atomic.Int64) error {
	frame := make([]byte, 1<<17)
	for {
		n, err := f.Read(frame)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for i, text := range texts {
			if bytes.Contains(frame[:n], text) {
				counts[i].Add(1)
			}
		}
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
