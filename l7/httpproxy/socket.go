package httpproxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive reads from a socket without waiting. Both system calls return at once, so that the runtime need not know of
// them.
func receive(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// send writes to a socket what it takes without waiting.
func send(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// duplicate is another descriptor of a connection's socket, which the runtime does not wait for.
func duplicate(raw syscall.RawConn) (int, error) {
	fd, bad := -1, error(nil)
	err := raw.Control(func(socket uintptr) { fd, bad = unix.FcntlInt(socket, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, bad); err != nil {
		return -1, fmt.Errorf("duplicate a socket: %w", err)
	}
	return fd, nil
}

// connOf is a connection of a socket, whose descriptor it closes.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	return net.FileConn(f)
}

// shutdown makes both sockets of a pair end, which is an event for its loop.
func (p *pair) shutdown() {
	for _, fd := range p.fds {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // an error says that the peer has ended it
	}
}
