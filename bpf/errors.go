package bpf

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isGone reports whether netlink says that the device, or its qdisc, is not there.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}
