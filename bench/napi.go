package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// poller is the kernel thread that does a device's receiving, by its process id.
type poller int

// Of the netdev family of generic netlink, linux/netdev.h.
const (
	netdevFamily  = "netdev"
	netdevNapiGet = 11
	napiIfindex   = 1
	napiPID       = 4
)

// pollApart gives wire0 of a namespace, whose index is given, a thread that receives, where it would be done by whoever
// sends to it, and keeps that on a processor, before all else of a lower priority. What the device is to run must be
// attached. Kernel 6.8 or later.
func pollApart(ctx context.Context, netns string, index, processor int, priority uint32) (poller, error) {
	if err := run(ctx, "ip", "netns", "exec", netns, "sh", "-c", "echo 1 > /sys/class/net/wire0/threaded"); err != nil {
		return 0, err
	}
	var p poller
	err := inNetns(netns, func() (err error) {
		p, err = pollerOf(index)
		return err
	})
	if err == nil {
		err = keepOn(int(p), processor, priority)
	}
	if err != nil {
		return 0, fmt.Errorf("poll wire0 of %s apart: %w", netns, err)
	}
	return p, nil
}

// pollerOf asks the kernel for the thread of a device that has one.
func pollerOf(index int) (poller, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return 0, fmt.Errorf("find netlink family %s: %w", netdevFamily, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	req.AddData(&nl.Genlmsg{Command: netdevNapiGet, Version: uint8(family.Version)})
	req.AddData(nl.NewRtAttr(napiIfindex, nl.Uint32Attr(uint32(index))))
	found, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("list pollers: %w", err)
	}
	var pids []poller
	for _, text := range found {
		attrs, err := nl.ParseRouteAttr(text[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("list pollers: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == napiPID {
				pids = append(pids, poller(binary.NativeEndian.Uint32(a.Value)))
			}
		}
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("device %d has pollers %v: want one", index, pids)
	}
	return pids[0], nil
}

// worked is how long the poller has had its processor. It is exact to the tick, or, when it is asked for on that very
// processor, to the moment.
func (p poller) worked() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p))
	if err != nil {
		return 0, err
	}
	var ns int64
	if _, err := fmt.Sscan(string(text), &ns); err != nil {
		return 0, fmt.Errorf("read time of poller %d from %q: %w", p, text, err)
	}
	return time.Duration(ns), nil
}
