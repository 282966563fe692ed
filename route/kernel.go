package route

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Protocol marks what Myelin put into the kernel: routes (rtm_protocol),
// neighbours (NDA_PROTOCOL, kernel 5.0) and addresses (IFA_PROTO, kernel 5.18)
// carry it, so that a later agent finds what an earlier one left and touches
// nothing else. It is no number that the kernel or iproute2 has assigned.
const Protocol = 0x4d

// Kernel reaches rtnetlink and /proc/sys/net of one network namespace.
type Kernel struct {
	*netlink.Handle
	namespace *netns.NsHandle
	raw       map[int]*nl.SocketHandle
}

// OpenKernel opens the network namespace, or that of the process for nil. The
// namespace handle must stay open until Close.
func OpenKernel(namespace *netns.NsHandle) (*Kernel, error) {
	at := netns.None()
	if namespace != nil {
		at = *namespace
	}
	handle, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	raw := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	return &Kernel{Handle: handle, namespace: namespace, raw: raw}, nil
}

// Close closes the sockets.
func (k *Kernel) Close() {
	k.Handle.Close()
	for _, s := range k.raw {
		s.Close()
	}
}

// Do runs fn on a thread in the namespace of k, for what is bound to the
// calling thread's namespace: files in /proc/sys/net, new sockets.
func (k *Kernel) Do(fn func() error) error {
	if k.namespace == nil {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no other
		// goroutine can come to run in this namespace.
		runtime.LockOSThread()
		if err := netns.Set(*k.namespace); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// RemoveDevice removes a device, and reports whether there was one of that name and type.
func (k *Kernel) RemoveDevice(name, kind string) (removed bool, err error) {
	link, err := k.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return false, nil
	case err == nil && link.Type() != kind:
		return false, nil
	case err == nil:
		err = k.LinkDel(link)
	}
	return err == nil, err
}

// dump runs a function that reads a whole table again for as long as the table
// changes underneath it, which makes the answer incomplete.
func dump(read func() error) error {
	const tries = 10
	var err error
	for range tries {
		if err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// notFound reports whether err says that the thing is not there (any more).
func notFound(err error) bool {
	var link netlink.LinkNotFoundError
	return errors.As(err, &link) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EADDRNOTAVAIL)
}
