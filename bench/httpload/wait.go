package httpload

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollWait is epoll_pwait2, whose timeout is in ns, not ms. It needs Linux 5.11.
func epollWait(fd int, events []unix.EpollEvent, timeout time.Duration) (int, error) {
	t := unix.NsecToTimespec(timeout.Nanoseconds())
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(fd), uintptr(unsafe.Pointer(&events[0])),
		uintptr(len(events)), uintptr(unsafe.Pointer(&t)), 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return 0, fmt.Errorf("wait for responses: %w", errno)
	}
	if errno != 0 {
		return 0, nil
	}
	return int(n), nil
}
