package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/hooks"
	"myelin/route"
	"myelin/status"
)

// deviceStatus compares the hooks that wires and pod links should have with
// those that the kernel has.
func (a *Agent) deviceStatus(txn statedb.ReadTxn) ([]status.Device, error) {
	handle, err := netlink.NewHandle()
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	wanted := a.wantedHooks(txn)
	var list []status.Device
	for d := range a.routes.Devices.All(txn) {
		link := byIndex[d.Index]
		// A device that vanishes while we look is of no interest.
		if d.Kind == route.Other || link == nil {
			continue
		}
		x := status.Device{Name: d.Name, Index: d.Index, Kind: string(d.Kind), Why: d.Why, Driver: d.Driver, MTU: d.MTU, Up: d.Up}
		programs, err := hooks.List(handle, link)
		if err != nil {
			if _, gone := handle.LinkByIndex(d.Index); gone != nil {
				continue
			}
			return nil, err
		}
		x.Hooks, x.Missing, x.Foreign = compareHooks(programs, wanted[d.Index])
		list = append(list, x)
	}
	return list, nil
}

// wantedHooks are by index of device. Rows that are not yet reconciled have
// their own way to say so.
func (a *Agent) wantedHooks(txn statedb.ReadTxn) map[int][]bpf.Hook {
	wanted := map[int][]bpf.Hook{}
	for w := range a.node.Wires.All(txn) {
		wanted[w.Index] = w.Hooks
	}
	for e := range a.endpoints.All(txn) {
		if e.Deleting() {
			continue
		}
		wanted[e.LinkIndex] = []bpf.Hook{bpf.FromPod}
		if a.tracking() {
			wanted[e.LinkIndex] = append(wanted[e.LinkIndex], bpf.ToPod)
		}
	}
	return wanted
}

// compareHooks tells ours from others by name: a program of an agent before us
// is ours until it is replaced.
func compareHooks(programs []hooks.Program, wanted []bpf.Hook) (have, missing, foreign []string) {
	for _, p := range programs {
		if ours(p.Name) {
			have = append(have, p.Name)
		} else {
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
	return slices.Contains([]bpf.Hook{bpf.FromPod, bpf.ToPod, bpf.FromWire, bpf.ToWire}, bpf.Hook(name))
}

// eventsLost sums over CPUs.
func (a *Agent) eventsLost() (lost uint64, err error) {
	var cpus []bpf.DatapathCpu
	if err := a.datapath.Cpus.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	for _, c := range cpus {
		lost += c.Budget.Lost
	}
	return lost, nil
}
