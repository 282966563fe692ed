package bench

import (
	"fmt"
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// undisturbed calls fn in a namespace, on the first processor, before all else that is to be done there. It must be short: others wait.
func undisturbed(netns string, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends as it is
		err := occupy(netns)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// occupy moves this thread to a namespace and to the first processor, where it runs until it waits.
func occupy(netns string) error {
	space, err := ns.GetNS("/run/netns/" + netns)
	if err != nil {
		return err
	}
	defer space.Close()
	if err := space.Set(); err != nil {
		return err
	}
	var first unix.CPUSet
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return fmt.Errorf("stay on the first processor: %w", err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return fmt.Errorf("run before others: %w", err)
	}
	return nil
}
