package userspace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raisePriority has the process scheduled before others: the packets of all pods wait for it, and those that do not fit
// into the queue of the device are lost. Where the kernel schedules each session as a group (sched(7), autogroups), the
// nice value of the group counts, and that of threads only within it. A container may not have the right to do so.
func raisePriority() {
	nice := -15
	_, _, _ = syscall.AllThreadsSyscall(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(nice))
	_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0)
}

// limitCapabilities gives up all capabilities but CAP_NET_ADMIN, which the MTU of the device and buffers of sockets
// need: the process reads packets of any sender.
func limitCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	const keep = 1 << unix.CAP_NET_ADMIN
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&data[0])), 0)
	if errno == unix.ENOTSUP {
		return errors.New("give up capabilities: the program was built with cgo, which does not allow that: " +
			"build it with CGO_ENABLED=0, as make build does")
	}
	if errno != 0 {
		return fmt.Errorf("give up capabilities: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("give up privileges of programs that are executed: %w", errno)
	}
	return nil
}
