package bandwidth

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// segments is the name of a parameter of devices among originals: how many segments a packet has at most that the
// network is to cut it into (GSO).
const segments = "gso_max_segs"

// A packet waits as one, whatever its size: 64 KiB are half a second at 1 Mbit/s, two of which each socket has waiting.
// So packets of pods with low limits are smaller. Packets of few segments cost more, also where no limit applies.
const (
	packetTime  = 10 * time.Millisecond // that a packet takes at most at the limit
	minSegments = 4                     // where not even these take that time
	maxSegments = 128                   // of the largest packets, 192 KiB with BIG TCP
	segmentSize = 1500
)

// segmentsOf is how many segments packets of a pod with this limit in bit/s have at most; 0: any number.
func segmentsOf(limit uint64) int {
	n := limit / 8 / uint64(time.Second/packetTime) / segmentSize
	if limit == 0 || n >= maxSegments {
		return 0
	}
	return max(int(n), minSegments)
}

// setSegments has the pod's end of its link take packets of no more segments, or of as many as before. The thread is in
// the pod's network namespace. A pod whose link is gone is ending.
func (o *spaceOps) setSegments(s *Space) error {
	was := o.originals.of(s.key(), segments)
	if s.ID == hostSpace || s.Segments == 0 && was == "" {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	defer h.Close()
	link, err := peerOf(h, s.Link)
	if err != nil || link == nil {
		return err
	}
	have := link.Attrs().GSOMaxSegs
	if was == "" {
		was = strconv.FormatUint(uint64(have), 10)
		if err := o.originals.keep(s.key(), segments, was); err != nil {
			return err
		}
	}
	before, err := strconv.Atoi(was)
	if err != nil {
		return fmt.Errorf("what it was before: %w", err)
	}
	want := before
	if s.Segments > 0 {
		want = min(s.Segments, before)
	}
	if int(have) != want {
		if err := h.LinkSetGSOMaxSegs(link, want); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("set that of %s to %d: %w", link.Attrs().Name, want, err)
		}
	}
	if s.Segments > 0 {
		return nil
	}
	return o.originals.forget(s.key(), segments)
}

// peerOf is the device whose other end has an index in another network namespace, nil: there is none.
func peerOf(h *netlink.Handle, index int) (netlink.Link, error) {
	var list []netlink.Link
	err := complete(func() (err error) {
		list, err = h.LinkList()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, link := range list {
		a := link.Attrs()
		if a.ParentIndex == index && a.NetNsID >= 0 && (link.Type() == "veth" || link.Type() == "netkit") {
			return link, nil
		}
	}
	return nil, nil
}
