// Package ends counts which of two ends of a path CPUs work for, where both are on one machine.
//
//go:generate sh generate.sh
package ends

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Ends counts between Begin and Close.
type Ends struct {
	objects endsObjects
	links   []link.Link
}

// Times are ns of CPU, by end: what neither is charged with is in Other, without idle time.
type Times struct{ Other, Client, Server uint64 }

// Sub is the time since earlier.
func (t Times) Sub(earlier Times) Times {
	return Times{t.Other - earlier.Other, t.Client - earlier.Client, t.Server - earlier.Server}
}

// Begin starts counting. Client and server are the names of network namespaces in /run/netns that belong to each end.
// Needs kernel 5.5.
func Begin(client, server []string) (*Ends, error) {
	var e Ends
	if err := loadEndsObjects(&e.objects, nil); err != nil {
		return nil, fmt.Errorf("load programs at tracepoints: %w", err)
	}
	for end, names := range map[endsEnd][]string{endsEndEND_CLIENT: client, endsEndEND_SERVER: server} {
		for _, name := range names {
			inode, err := inodeOf("/run/netns/" + name)
			if err == nil {
				err = e.objects.Namespaces.Put(inode, uint32(end))
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("network namespace %s: %w", name, err), e.Close())
			}
		}
	}
	o := &e.objects
	for _, p := range []*ebpf.Program{o.Switched, o.SoftirqEnded, o.Received, o.Aggregated, o.Transmitted, o.Woken,
		o.WorkQueued, o.WorkBegun} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach to a tracepoint: %w", err), e.Close())
		}
		e.links = append(e.links, l)
	}
	return &e, nil
}

func inodeOf(path string) (uint32, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, err
	}
	return uint32(stat.Ino), nil
}

// Times are those until now.
func (e *Ends) Times() (Times, error) {
	var cpus []endsAccount
	var t Times
	if err := e.objects.Accounts.Lookup(uint32(0), &cpus); err != nil {
		return t, fmt.Errorf("read times: %w", err)
	}
	for _, cpu := range cpus {
		t.Other += cpu.Charged[endsEndEND_OTHER]
		t.Client += cpu.Charged[endsEndEND_CLIENT]
		t.Server += cpu.Charged[endsEndEND_SERVER]
	}
	return t, nil
}

// Close stops counting.
func (e *Ends) Close() error {
	var failed []error
	for _, l := range e.links {
		failed = append(failed, l.Close())
	}
	return errors.Join(append(failed, e.objects.Close())...)
}
