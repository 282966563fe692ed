package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/route"
	"myelin/tunnel"
)

// mtu compares wires with each other, with the tunnel, and with pods.
func (x *examination) mtu() {
	smallest, largest := 0, 0
	var texts []string
	for _, l := range x.wireLinks() {
		m := l.Attrs().MTU
		texts = append(texts, fmt.Sprintf("%s %d", l.Attrs().Name, m))
		if smallest == 0 || m < smallest {
			smallest = m
		}
		largest = max(largest, m)
	}
	if smallest == 0 {
		return
	}
	if smallest != largest {
		x.warn("the wires differ in MTU: "+strings.Join(texts, ", "),
			"pods get the smallest; larger packets that arrive are fragmented or refused",
			"set the same MTU on all of them, and on the switches")
	}
	wire := smallest
	if x.Config.MTU != 0 {
		wire = x.Config.MTU
		if wire > smallest {
			x.fail(fmt.Sprintf("MTU is configured as %d, and a wire carries %d", wire, smallest),
				"packets of pods are too big for it", "remove MTU from the configuration, or raise it on the device")
		}
	}
	pod := wire - x.Config.TunnelOverhead()
	if x.Config.IPv6.Enabled && pod < 1280 {
		x.fail(fmt.Sprintf("pods are left %d bytes (%d of the wire, %d of the tunnel)", pod, wire,
			x.Config.TunnelOverhead()),
			"IPv6 needs 1280 (RFC 8200, section 5)", "raise the MTU of the wires")
		return
	}
	x.podMTU(wire, pod)
}

// podMTU compares pod links with the wires, whose MTU they have, and the tunnel with what its headers leave.
func (x *examination) podMTU(wire, pod int) {
	wrong := 0
	for _, l := range x.links {
		if m := l.Attrs().MTU; isPod(l) && m > wire || l.Attrs().Name == tunnel.DeviceName && m > pod {
			wrong++
		}
	}
	if wrong > 0 {
		x.warn(fmt.Sprintf("%d pod links have an MTU above %d, or the tunnel one above %d", wrong, wire, pod),
			"their packets are too big for the wire, and depend on path MTU discovery",
			"restart these pods; they were made when the MTU was larger")
		return
	}
	x.ok("pods can send packets of %d bytes", pod)
}

// routeMTU looks for routes whose MTU only the stack heeds: bpf_fib_lookup
// takes a route's MTU into account if it is locked (ip_mtu_from_fib_result).
func (x *examination) routeMTU() {
	if x.Config.BPF.HostLegacyRouting {
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
		err := x.netlink.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE, each)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			x.info("routes can't be listed: "+err.Error(), "", "")
		}
	}
	if count > 0 {
		x.warn(fmt.Sprintf("%d routes have an MTU that is not locked: %s", count, first),
			"eBPF host routing heeds the MTU of a route only if it is locked: pods' packets leave whole",
			"ip route change ROUTE mtu lock MTU")
	}
}
