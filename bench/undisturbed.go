package bench

import (
	"fmt"
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// undisturbed calls fn in a namespace, on a processor, counted from 0, before all else of a lower priority that is to
// be done there; 1 is before all usual work. fn must be short: others wait.
func undisturbed(netns string, processor int, priority uint32, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends as it is
		err := occupy(netns, processor, priority)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// occupy moves this thread to a namespace and to a processor.
func occupy(netns string, processor int, priority uint32) error {
	space, err := ns.GetNS("/run/netns/" + netns)
	if err != nil {
		return err
	}
	defer space.Close()
	if err := space.Set(); err != nil {
		return err
	}
	return keepOn(0, processor, priority)
}

// keepOn keeps a thread, this one if it is 0, on a processor, where it runs until it waits or one of a higher priority
// comes.
func keepOn(thread, processor int, priority uint32) error {
	var only unix.CPUSet
	only.Set(processor)
	if err := unix.SchedSetaffinity(thread, &only); err != nil {
		return fmt.Errorf("keep thread on processor %d: %w", processor, err)
	}
	if err := unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO,
		Priority: priority}, 0); err != nil {
		return fmt.Errorf("run thread before others: %w", err)
	}
	return nil
}
