package check

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kind tries to create a device, in a network namespace that lasts as long as the
// trial. level is that of the finding if it can't be created, why says what needs it.
func (m *Machine) Kind(link netlink.Link, level Level, why string) {
	err := inNewNamespace(func(h *netlink.Handle) error { return h.LinkAdd(link) })
	if err == nil {
		m.OK("devices of type %s can be made", link.Type())
		return
	}
	m.Add(level, "no device of type "+link.Type()+" can be made: "+err.Error(), why,
		"load the module "+link.Type()+", or boot a kernel that has it")
}

// inNewNamespace calls try with netlink in a namespace of its own.
func inNewNamespace(try func(*netlink.Handle) error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespace
		// with the thread.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		h, err := netlink.NewHandle()
		if err != nil {
			done <- err
			return
		}
		defer h.Close()
		done <- try(h)
	}()
	return <-done
}
