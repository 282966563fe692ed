package podlink

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ProbeNetkit returns an error where the kernel has no netkit devices. It asks which programs the loopback device has:
// a kernel with netkit says that this is no netkit device.
func ProbeNetkit() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachNetkitPrimary})
	if err == nil || errors.Is(err, unix.ENXIO) {
		return nil
	}
	return fmt.Errorf("the kernel has no netkit (6.7 or later, CONFIG_NETKIT): %w", err)
}
