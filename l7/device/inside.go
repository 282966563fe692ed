package device

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/endpoint/podlink"
)

const (
	// localTable has a route that makes every address local, for packets that come by the veth.
	localTable = 100
	// localPriority is that of the rule that leads there, before that of the main table.
	localPriority = 100
)

// configureInside makes every address local to packets that come in, and the other end of the veth the neighbour of
// packets that go out.
func (s *Spec) configureInside(spec podlink.Spec) error {
	namespace, err := ns.GetNS(spec.NetNS)
	if err != nil {
		return fmt.Errorf("enter the proxy's network namespace: %w", err)
	}
	defer namespace.Close()
	err = namespace.Do(func(ns.NetNS) error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		defer h.Close()
		if err := s.sysctlsInside(); err != nil {
			return err
		}
		for family, gateway := range map[int]net.IP{netlink.FAMILY_V4: spec.Gateway4.AsSlice(),
			netlink.FAMILY_V6: spec.Gateway6.AsSlice()} {
			if gateway == nil {
				continue
			}
			if err := makeLocal(h, family, gateway); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("configure the proxy's network namespace: %w", err)
	}
	return nil
}

// sysctlsInside lets connections use the port of one that ended a second ago (RFC 6191), as their client has decided,
// and lets bursts of them wait.
func (s *Spec) sysctlsInside() error {
	for _, one := range [][2]string{
		{"net/ipv4/tcp_tw_reuse", "1"}, {"net/core/somaxconn", "65535"}, {"net/ipv4/tcp_max_syn_backlog", "65535"},
		{"net/ipv4/conf/all/rp_filter", "0"}, {"net/ipv4/conf/" + insideName + "/rp_filter", "0"},
	} {
		if err := os.WriteFile(filepath.Join(s.ProcSys, one[0]), []byte(one[1]), 0); err != nil {
			return fmt.Errorf("write sysctl: %w", err)
		}
	}
	return nil
}

// makeLocal configures one family.
func makeLocal(h *netlink.Handle, family int, gateway net.IP) error {
	inside, err := h.LinkByName(insideName)
	if err != nil {
		return fmt.Errorf("find %s: %w", insideName, err)
	}
	loopback, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	neighbour := &netlink.Neigh{LinkIndex: inside.Attrs().Index, IP: gateway, HardwareAddr: linkMAC(),
		State: netlink.NUD_PERMANENT, Family: family}
	if err := h.NeighSet(neighbour); err != nil {
		return fmt.Errorf("add the neighbour %s: %w", gateway, err)
	}
	bits := 8 * len(gateway)
	everything := &net.IPNet{IP: make(net.IP, len(gateway)), Mask: net.CIDRMask(0, bits)}
	route := &netlink.Route{LinkIndex: loopback.Attrs().Index, Dst: everything, Table: localTable,
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: family}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("make all addresses local: %w", err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.IifName, rule.Table, rule.Priority = family, insideName, localTable, localPriority
	if err := h.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the rule for all addresses: %w", err)
	}
	return nil
}
