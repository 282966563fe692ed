package node

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/doctor/check"
	"myelin/route"
	"myelin/route/tunnel"
)

// checkMTU compares wires with each other, with the tunnel, and with pods.
func checkMTU(m *check.Machine) {
	smallest, largest := 0, 0
	var texts []string
	for _, l := range m.Wires {
		mtu := l.Attrs().MTU
		texts = append(texts, fmt.Sprintf("%s %d", l.Attrs().Name, mtu))
		if smallest == 0 || mtu < smallest {
			smallest = mtu
		}
		largest = max(largest, mtu)
	}
	if smallest == 0 {
		return
	}
	if smallest != largest {
		m.Warn("the wires differ in MTU: "+strings.Join(texts, ", "),
			"pods get the smallest; larger packets that arrive are fragmented or refused",
			"set the same MTU on all of them, and on the switches")
	}
	wire := smallest
	if m.Config.MTU != 0 {
		wire = m.Config.MTU
		if wire > smallest {
			m.Fail(fmt.Sprintf("MTU is configured as %d, and a wire carries %d", wire, smallest),
				"packets of pods are too big for it", "remove MTU from the configuration, or raise it on the device")
		}
	}
	pod := wire - m.Config.TunnelOverhead()
	if m.Config.IPv6.Enabled && pod < 1280 {
		m.Fail(fmt.Sprintf("pods are left %d bytes (%d of the wire, %d of the tunnel)", pod, wire,
			m.Config.TunnelOverhead()),
			"IPv6 needs 1280 (RFC 8200, section 5)", "raise the MTU of the wires")
		return
	}
	podMTU(m, wire, pod)
}

// podMTU compares pod links with the wires, whose MTU they have, and the tunnel with what its headers leave.
func podMTU(m *check.Machine, wire, pod int) {
	wrong := 0
	for _, l := range m.Pods {
		if l.Attrs().MTU > wire {
			wrong++
		}
	}
	for _, l := range m.Links {
		if l.Attrs().Name == tunnel.DeviceName && l.Attrs().MTU > pod {
			wrong++
		}
	}
	if wrong > 0 {
		m.Warn(fmt.Sprintf("%d pod links have an MTU above %d, or the tunnel one above %d", wrong, wire, pod),
			"their packets are too big for the wire, and depend on path MTU discovery",
			"restart these pods; they were made when the MTU was larger")
		return
	}
	m.OK("pods can send packets of %d bytes", pod)
}

// checkRouteMTU looks for routes whose MTU only the stack heeds: bpf_fib_lookup
// takes a route's MTU into account if it is locked (ip_mtu_from_fib_result).
func checkRouteMTU(m *check.Machine) {
	if m.Config.BPF.HostLegacyRouting {
		return
	}
	count, first := 0, ""
	each := func(r netlink.Route) bool {
		if r.MTU > 0 && !r.MTULock && r.Protocol != route.Protocol && r.Type == unix.RTN_UNICAST {
			if count++; count == 1 {
				first = fmt.Sprintf("%s mtu %d", r.Dst, r.MTU)
			}
		}
		return true
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := m.Netlink.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE, each)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			m.Info("routes can't be listed: "+err.Error(), "", "")
		}
	}
	if count > 0 {
		m.Warn(fmt.Sprintf("%d routes have an MTU that is not locked: %s", count, first),
			"eBPF host routing heeds the MTU of a route only if it is locked: pods' packets leave whole",
			"ip route change ROUTE mtu lock MTU")
	}
}
