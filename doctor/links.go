package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"myelin/config"
	"myelin/doctor/check"
	"myelin/route"
	"myelin/route/tunnel"
	"myelin/status"
)

// readLinks reads the devices of the node, and which of them the datapath is on.
func (o *Options) readLinks(m *check.Machine) {
	links, err := m.Netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		m.Fail("links can't be listed: "+err.Error(), "nothing about devices can be told", "run as root")
	}
	m.Links = links
	defaults := defaultRoutes(m.Netlink)
	for _, l := range links {
		pod, wire := isPod(l), o.isWire(m.Netlink, l, defaults)
		if pod {
			m.Pods = append(m.Pods, l)
		}
		if wire {
			m.Wires = append(m.Wires, l)
		}
		if pod || wire || l.Attrs().Name == tunnel.DeviceName {
			m.Hooked = append(m.Hooked, l)
		}
	}
}

// Wires are the names of the devices that lead to other nodes, in the network namespace of the process.
func Wires(o Options) ([]string, error) {
	handle, err := netlink.NewHandle()
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer handle.Close()
	m := &check.Machine{Config: o.Config, Netlink: handle, Area: "devices"}
	o.readLinks(m)
	if len(m.Findings) > 0 {
		return nil, errors.New(m.Findings[0].What)
	}
	names := make([]string, len(m.Wires))
	for i, l := range m.Wires {
		names[i] = l.Attrs().Name
	}
	return names, nil
}

// defaultRoutes are the indexes of links with a default route.
func defaultRoutes(handle *netlink.Handle) map[int]bool {
	defaults := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := handle.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
		if err != nil {
			continue
		}
		for _, r := range routes {
			defaults[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				defaults[hop.LinkIndex] = true
			}
		}
	}
	delete(defaults, 0)
	return defaults
}

// isWire guesses as the agent does: what the configuration names, else what has
// a default route; where nothing has, what has a global address.
func (o *Options) isWire(handle *netlink.Handle, l netlink.Link, defaults map[int]bool) bool {
	a := l.Attrs()
	if o.Agent != nil {
		return slices.ContainsFunc(o.Agent.Devices, func(d status.Device) bool {
			return d.Index == a.Index && d.Kind == string(route.Wire)
		})
	}
	if isPod(l) || a.Name == "lo" || a.Name == tunnel.DeviceName {
		return false
	}
	if len(o.Config.Devices) > 0 {
		return slices.ContainsFunc(o.Config.Devices, func(p string) bool { return config.MatchDevice(p, a.Name) })
	}
	if len(defaults) > 0 {
		return defaults[a.Index]
	}
	addresses, err := handle.AddrList(l, netlink.FAMILY_ALL)
	return err == nil && a.MasterIndex == 0 && slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
		return a.IP.IsGlobalUnicast()
	})
}

func isPod(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Name, route.PodPrefix) && (l.Type() == "veth" || l.Type() == "netkit")
}
