// Package userspace is WireGuard in a process of its own, for kernels without it: a TUN device whose packets
// wireguard-go encrypts. The process outlives the agent, which configures it by the same calls as the kernel's devices.
package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"myelin/internal/daemon"
)

// Params are what a process works with.
type Params struct {
	RunDir string // of the agent
	Device string // name of the TUN device
	MTU    int    // of the device, bytes; the agent may change it
	// Version is shown in the status.
	Version string
	Log     *slog.Logger
}

// socketOf is where the process of a device is configured, in the text protocol of wg(8).
func socketOf(runDir, device string) string {
	return filepath.Join(runDir, "wireguard", device+".sock")
}

// The question about the process itself, which that protocol does not have.
const (
	aboutRequest = "about=1\n\n"
	aboutPrefix  = "about="
)

// Run encrypts until the context ends or the device is removed. The device stays when the process ends, so that what
// is routed to it is dropped, not sent in plain text.
func Run(ctx context.Context, p Params) error {
	t, err := openTUN(p.Device, p.MTU)
	if err != nil {
		return fmt.Errorf("open TUN device %s: %w", p.Device, err)
	}
	raisePriority()
	if err := limitCapabilities(); err != nil {
		return errors.Join(err, t.Close())
	}
	// What peers and pods can cause is logged seldom, and what follows from the device's removal is not.
	seldom := rate.NewLimiter(1, 10)
	b := newBounded(&checksummed{t})
	dev := device.NewDevice(b, conn.NewDefaultBind(), &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf: func(format string, args ...any) {
			if _, err := net.InterfaceByName(p.Device); err == nil && seldom.Allow() {
				p.Log.Warn("WireGuard", "error", fmt.Sprintf(format, args...))
			}
		},
	})
	debug.SetMemoryLimit(MemoryLimit)
	if err := b.limit(dev, maxBuffers, sendBuffers); err != nil {
		return errors.Join(err, t.Close()) // dev.Close would wait for its goroutines, which wait for the limit
	}
	defer dev.Close()
	if err := dev.Up(); err != nil {
		return fmt.Errorf("open WireGuard's UDP socket: %w", err)
	}
	path := socketOf(p.RunDir, p.Device)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the directory of the control socket: %w", err)
	}
	l, err := daemon.Listen(path)
	if err != nil {
		return fmt.Errorf("open the control socket: %w", err)
	}
	defer l.Close()
	s := &server{device: dev, version: p.Version, started: time.Now()}
	go s.serve(l)
	p.Log.Info("WireGuard is ready", "device", p.Device, "version", p.Version)
	select {
	case <-ctx.Done():
	case <-dev.Wait():
		p.Log.Info("WireGuard ends: its device was removed", "device", p.Device)
	}
	return nil
}

// openTUN opens the device, which is made if it is not there.
func openTUN(name string, mtu int) (tun.Device, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		// With a header of virtio, the kernel and the process exchange segments of up to 64 KB.
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("another process has it: %w", err)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return tun.CreateTUNFromFile(os.NewFile(uintptr(fd), "/dev/net/tun"), mtu)
}

// server answers on the control socket.
type server struct {
	device  *device.Device
	version string
	started time.Time
}

func (s *server) serve(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go s.answer(c)
	}
}

// buffered is a connection of which a part was read already.
type buffered struct {
	net.Conn
	reader *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

func (s *server) answer(c net.Conn) {
	defer c.Close()
	b := &buffered{c, bufio.NewReader(c)}
	start, err := b.reader.Peek(len(aboutPrefix))
	if err != nil {
		return
	}
	if string(start) != aboutPrefix {
		s.device.IpcHandle(b)
		return
	}
	if _, err := io.ReadFull(b, make([]byte, len(aboutRequest))); err != nil {
		return
	}
	if _, err := fmt.Fprintf(c, "version=%s\nstarted=%d\nmemory=%d\nerrno=0\n\n", oneLine(s.version),
		s.started.UnixNano(), memory()); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, b) // until the client goes: it waits for the end of this process
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
