package ipsec

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// tries is how often a list is read again that has changed meanwhile.
const tries = 10

// listStates are the kernel's states that agents made.
func listStates(k *route.Kernel) (states []netlink.XfrmState, err error) {
	for range tries {
		if states, err = k.XfrmStateList(netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list states: %w", err)
	}
	return slices.DeleteFunc(states, func(x netlink.XfrmState) bool { return !ours(&x) }), nil
}

// listPolicies are the kernel's policies that agents made.
func listPolicies(k *route.Kernel) (ids []policyID, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		var list []netlink.XfrmPolicy
		for range tries {
			if list, err = k.XfrmPolicyList(family); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("list policies: %w", err)
		}
		for _, x := range list {
			of := x.Src
			if x.Dir == netlink.XFRM_DIR_OUT {
				of = x.Dst
			}
			if p, ok := prefixOf(of.IP, family, mark-x.Priority); ok && x.Ifid == mark {
				ids = append(ids, policyID{x.Dir, p})
			}
		}
	}
	return ids, nil
}

// prefixOf is a selector's prefix. The netlink package takes addresses of IPv6 whose last 12 bytes are zero for IPv4's,
// and may lose the length then, which the priority has as well.
func prefixOf(ip net.IP, family, bits int) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(ip)
	if a = a.Unmap(); family == unix.AF_INET6 && a.Is4() {
		var b [16]byte
		four := a.As4()
		copy(b[:], four[:])
		a = netip.AddrFrom16(b)
	}
	p, err := a.Prefix(bits)
	return p, ok && err == nil
}
