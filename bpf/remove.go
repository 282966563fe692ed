package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// filterPrefix begins the names of our filters.
const filterPrefix = "myelin-"

// Remove takes off what agents have attached and pinned below dir, which is Options.Dir: links of devices and control
// groups, filters of the devices of the thread's network namespace, maps. It is for a node that Myelin leaves; no agent
// may run. It goes on after an error, and returns what it removed.
func Remove(dir string) (removed []string, err error) {
	var errs []error
	for _, kind := range []string{"sockets", "links"} {
		pins, err := filepath.Glob(filepath.Join(dir, kind, "*"))
		errs = append(errs, err)
		for _, pin := range pins {
			errs = append(errs, removeLink(pin))
		}
		if len(pins) > 0 {
			removed = append(removed, fmt.Sprintf("%d %s", len(pins),
				map[string]string{"sockets": "programs of sockets", "links": "programs of devices"}[kind]))
		}
	}
	filters, err := removeFilters()
	removed, errs = append(removed, filters...), append(errs, err)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return removed, errors.Join(errs...)
	}
	if err := os.RemoveAll(dir); err != nil {
		return removed, errors.Join(append(errs, fmt.Errorf("remove pins: %w", err))...)
	}
	return append(removed, "pins below "+dir), errors.Join(errs...)
}

// removeLink detaches before the pin goes: a descriptor that another process holds would keep the program where it is.
func removeLink(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		err = l.Detach()
		if errors.Is(err, link.ErrNotSupported) {
			err = nil
		}
		l.Close()
	}
	if bad := os.Remove(pin); bad != nil {
		err = errors.Join(err, bad)
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", filepath.Base(pin), err)
	}
	return nil
}

// removeFilters removes our filters, and their qdisc where they were the last ones.
func removeFilters() (removed []string, err error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		names, err := removeFiltersOf(l)
		if len(names) > 0 {
			removed = append(removed, fmt.Sprintf("filters of %s: %s", l.Attrs().Name, strings.Join(names, ", ")))
		}
		if err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("remove filters of %s: %w", l.Attrs().Name, err))
		}
	}
	return removed, errors.Join(errs...)
}

func removeFiltersOf(l netlink.Link) (names []string, err error) {
	qdisc, err := sidesOf(l)
	if err != nil || qdisc == nil {
		return nil, err
	}
	parents := []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}
	if qdisc.Type() == "ingress" { // it shows the same filters on both
		parents = parents[:1]
	}
	others := 0
	for _, parent := range parents {
		filters, err := netlink.FilterList(l, parent)
		if err != nil {
			return names, err
		}
		for _, f := range filters {
			b, ok := f.(*netlink.BpfFilter)
			if !ok || !strings.HasPrefix(b.Name, filterPrefix) {
				others++
				continue
			}
			if err := netlink.FilterDel(f); err != nil {
				return names, err
			}
			names = append(names, strings.TrimPrefix(b.Name, filterPrefix))
		}
	}
	if len(names) == 0 || others > 0 {
		return names, nil
	}
	return names, netlink.QdiscDel(qdisc)
}

// sidesOf returns the qdisc that filters of both sides, or of ingress alone, hang on; nil if there is none.
func sidesOf(l netlink.Link) (netlink.Qdisc, error) {
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, err
	}
	for _, q := range qdiscs {
		if q.Type() == "ingress" || q.Type() == "clsact" {
			return q, nil
		}
	}
	return nil, nil
}
