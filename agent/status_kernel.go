package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/bpf/hooks"
	"myelin/endpoint"
	"myelin/route"
	"myelin/status"
)

// deviceStatus compares the hooks that wires and pod links should have with those that the kernel has, and finds pod
// links that belong to no endpoint.
func (ep *endpoints) deviceStatus(txn statedb.ReadTxn) ([]status.Device, []endpoint.Stray, error) {
	handle, err := netlink.NewHandle()
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	strays := ep.manager.Strays(links)
	unknown := map[int]bool{}
	for _, s := range strays {
		unknown[s.Index] = true
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	wanted := ep.wantedHooks(txn)
	var list []status.Device
	for d := range ep.network.routes.Devices.All(txn) {
		link := byIndex[d.Index]
		// A device that vanishes while we look is of no interest, and strays have a
		// line of their own.
		if d.Kind == route.Other || link == nil || unknown[d.Index] {
			continue
		}
		x := status.Device{Name: d.Name, Index: d.Index, Kind: string(d.Kind), Why: whyWire(d), Driver: d.Driver,
			MTU: d.MTU, Up: d.Up}
		programs, err := hooks.List(handle, link)
		if err != nil {
			if _, gone := handle.LinkByIndex(d.Index); gone != nil {
				continue
			}
			return nil, nil, err
		}
		x.Hooks, x.Missing, x.Foreign = compareHooks(programs, wanted[d.Index])
		list = append(list, x)
	}
	return list, strays, nil
}

// whyWire is why the device is a wire, and which kind of one.
func whyWire(d *route.Device) string {
	texts := []string{d.Why}
	if d.Kind == route.Wire && d.L3 {
		texts = append(texts, "no link-layer header")
	}
	if d.Kind == route.Wire && d.Encrypted() {
		texts = append(texts, "encrypted")
	}
	return strings.Join(texts, "; ")
}

// wantedHooks are by index of device. Rows that are not yet reconciled have
// their own way to say so.
func (ep *endpoints) wantedHooks(txn statedb.ReadTxn) map[int][]bpf.Hook {
	wanted := map[int][]bpf.Hook{}
	for w := range ep.network.node.Wires.All(txn) {
		wanted[w.Index] = w.Hooks
	}
	for e := range ep.table.All(txn) {
		if e.Deleting() {
			continue
		}
		wanted[e.LinkIndex] = []bpf.Hook{bpf.FromPod}
		if ep.Config.InspectsHost() {
			wanted[e.LinkIndex] = append(wanted[e.LinkIndex], bpf.ToPod)
		}
	}
	return wanted
}

// compareHooks tells ours from others by name: a program of an agent before us
// is ours until it is replaced.
func compareHooks(programs []hooks.Program, wanted []bpf.Hook) (have, missing, foreign []string) {
	for _, p := range programs {
		switch {
		case ours(p.Name) && slices.Contains(have, p.Name): // a link that is about to replace the filter
		case ours(p.Name):
			have = append(have, p.Name)
		default:
			foreign = append(foreign, p.String())
		}
	}
	for _, h := range wanted {
		if !slices.Contains(have, string(h)) {
			missing = append(missing, string(h))
		}
	}
	return have, missing, foreign
}

func ours(name string) bool {
	all := append(bpf.WireHooks(), bpf.FromPod, bpf.ToPod, bpf.FromWireXDP)
	return slices.Contains(append(all, bpf.ProxyHooks()...), bpf.Hook(name))
}
