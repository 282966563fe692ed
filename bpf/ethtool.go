package bpf

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct {
	command uint32
	data    uint32
}

// ifreq is struct ifreq of linux/if.h with a pointer as its data.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the kernel copies the whole union
}

// Ethtool reads a value of a device of this network namespace by an ETHTOOL_G command of linux/ethtool.h. The ioctl is
// older than netlink's ethtool family, and every kernel has it.
func Ethtool(name string, command uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	value := &ethtoolValue{command: command}
	request := ifreq{data: unsafe.Pointer(value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(value)
	if errno != 0 {
		return 0, fmt.Errorf("ethtool command %#x of %s: %w", command, name, errno)
	}
	return value.data, nil
}
