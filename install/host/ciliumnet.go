package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"myelin/bpf/hooks"
)

// isCiliumProgram tells programs and filters by their names: those of functions since 1.13, those of object files
// before.
func isCiliumProgram(name string) bool {
	return strings.HasPrefix(name, "cil_") || slices.ContainsFunc([]string{"bpf_lxc", "bpf_host", "bpf_netdev",
		"bpf_network", "bpf_overlay", "cilium"},
		func(part string) bool { return strings.Contains(name, part) })
}

// dropFilters removes Cilium's filters, which forward still, before the maps that they call; a clsact that is empty
// then goes, too.
func (o CiliumOptions) dropFilters(k *netlink.Handle) error {
	links, err := k.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		err := errors.Join(o.dropFiltersOf(k, l), o.dropXDP(k, l))
		if err == nil {
			continue
		}
		// A pod's device may vanish at any time, its programs with it.
		if _, gone := k.LinkByIndex(l.Attrs().Index); !errors.As(gone, new(netlink.LinkNotFoundError)) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (o CiliumOptions) dropFiltersOf(k *netlink.Handle, l netlink.Link) error {
	removed, left := 0, 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := k.FilterList(l, parent)
		if err != nil {
			return fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
		}
		for _, f := range filters {
			b, ok := f.(*netlink.BpfFilter)
			if !ok || !isCiliumProgram(b.Name) {
				left++
				continue
			}
			if err := k.FilterDel(f); err != nil {
				return fmt.Errorf("remove filter %s of %s: %w", b.Name, l.Attrs().Name, err)
			}
			removed++
			o.Say("removed filter %s of %s", b.Name, l.Attrs().Name)
		}
	}
	if removed == 0 || left > 0 {
		return nil
	}
	err := k.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove clsact of %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// dropXDP takes away what hangs on a device by no link: those end with their pins.
func (o CiliumOptions) dropXDP(k *netlink.Handle, l netlink.Link) error {
	list, err := hooks.List(k, l)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Where != hooks.XDP || !isCiliumProgram(p.Name) {
			continue
		}
		// The kernel removes it only from where it was put.
		mode := map[uint32]int{nl.XDP_ATTACHED_SKB: nl.XDP_FLAGS_SKB_MODE, nl.XDP_ATTACHED_DRV: nl.XDP_FLAGS_DRV_MODE,
			nl.XDP_ATTACHED_HW: unix.XDP_FLAGS_HW_MODE}
		err := netlink.LinkSetXdpFdWithFlags(l, -1, mode[l.Attrs().Xdp.AttachMode])
		if errors.Is(err, unix.EBUSY) {
			return nil // by a link
		}
		if err != nil {
			return fmt.Errorf("remove XDP program %s of %s: %w", p.Name, l.Attrs().Name, err)
		}
		o.Say("removed XDP program %s of %s", p.Name, l.Attrs().Name)
	}
	return nil
}

// dropPins removes links, and then maps.
func (o CiliumOptions) dropPins() error {
	maps, err := filepath.Glob(filepath.Join(o.BPFRoot, "tc/globals/cilium_*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{"devices", "endpoints", "socketlb", ""} {
		errs = append(errs, o.remove(filepath.Join(o.BPFRoot, "cilium", name)))
	}
	for _, path := range maps {
		if err := os.Remove(path); err != nil {
			errs = append(errs, fmt.Errorf("remove map: %w", err))
		}
	}
	if len(maps) > 0 {
		o.Say("removed %d maps in %s", len(maps), filepath.Dir(maps[0]))
	}
	for _, dir := range []string{"tc/globals", "tc"} {
		_ = os.Remove(filepath.Join(o.BPFRoot, dir)) // of others, if it isn't empty
	}
	return errors.Join(errs...)
}

// linkEnd is how long the kernel may take to end a link that is not held any more: a worker of it does that.
const linkEnd = 5 * time.Second

// dropSockets sees to it that no program of Cilium is left that translates what sockets ask for. One that hangs by a
// link ends by itself when its pin is gone.
func (o CiliumOptions) dropSockets(ctx context.Context) error {
	for _, path := range o.Cgroups {
		if !isMounted(path, unix.CGROUP2_SUPER_MAGIC) {
			continue
		}
		err := within(ctx, linkEnd, func(string, ...any) {}, func() error { return o.dropSocketsOf(path) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (o CiliumOptions) dropSocketsOf(path string) error {
	cgroup, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open control groups: %w", err)
	}
	defer cgroup.Close()
	list, err := hooks.Sockets(cgroup)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range list {
		if !isCiliumProgram(p.Name) {
			continue
		}
		if err := hooks.Detach(cgroup, p); err != nil {
			errs = append(errs, fmt.Errorf("remove %s of %s: %w", p, path, err))
			continue
		}
		o.Say("removed %s of %s", p, path)
	}
	return errors.Join(errs...)
}

// dropLinks removes devices. Those that the kernel made and Cilium has given another name can't be removed.
func (o CiliumOptions) dropLinks(k *netlink.Handle) error {
	links, err := k.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		name := l.Attrs().Name
		if !strings.HasPrefix(name, "cilium_") && !isCiliumPod(l) {
			continue
		}
		switch err := k.LinkDel(l); {
		case err == nil:
			o.Say("removed device %s", name)
		case errors.Is(err, unix.EOPNOTSUPP):
			o.Say("left device %s, which is the kernel's own", name)
		default:
			if _, gone := k.LinkByIndex(l.Attrs().Index); gone == nil { // not removed with its other side
				errs = append(errs, fmt.Errorf("remove device %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ciliumTables are its tables of routes: IPsec, VTEP, to and from the proxy of L7.
func ciliumTables() []int { return []int{200, 202, 2004, 2005} }

// Cilium looks addresses of the node up after its own rules, and so moves the rule that the kernel has for that.
const (
	localPriority       = 0
	ciliumLocalPriority = 100
)

// dropRoutes removes rules, and then routes. All of Cilium's say that the kernel has made them, so that network
// managers leave them alone; the kernel itself makes none with a gateway but by router advertisements, which say so.
func (o CiliumOptions) dropRoutes(k *netlink.Handle) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		errs = append(errs, o.dropRules(k, family), o.dropRoutesOf(k, family))
	}
	return errors.Join(errs...)
}

func (o CiliumOptions) dropRules(k *netlink.Handle, family int) error {
	rules, err := k.RuleList(family)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	isLocal := func(r netlink.Rule, priority int) bool {
		return r.Priority == priority && r.Table == unix.RT_TABLE_LOCAL
	}
	moved := slices.ContainsFunc(rules, func(r netlink.Rule) bool { return isLocal(r, ciliumLocalPriority) })
	if moved && !slices.ContainsFunc(rules, func(r netlink.Rule) bool { return isLocal(r, localPriority) }) {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table, rule.Protocol = family, localPriority, unix.RT_TABLE_LOCAL,
			unix.RTPROT_KERNEL
		if err := k.RuleAdd(rule); err != nil {
			return fmt.Errorf("put the rule for local addresses back: %w", err)
		}
		o.Say("put the rule for local addresses back")
	}
	for _, r := range rules {
		if !isLocal(r, ciliumLocalPriority) && !slices.Contains(ciliumTables(), r.Table) {
			continue
		}
		r.Family = family
		if err := k.RuleDel(&r); err != nil {
			return fmt.Errorf("remove rule %s: %w", r, err)
		}
		o.Say("removed rule %s", r)
	}
	return nil
}

func (o CiliumOptions) dropRoutesOf(k *netlink.Handle, family int) error {
	routes, err := k.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	for _, r := range routes {
		toNode := r.Table == unix.RT_TABLE_MAIN && r.Gw != nil && !isDefault(r.Dst)
		if r.Protocol != unix.RTPROT_KERNEL || !toNode && !slices.Contains(ciliumTables(), r.Table) {
			continue
		}
		if err := k.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r, err))
			continue
		}
		o.Say("removed route to %s, table %d", r.Dst, r.Table)
	}
	return errors.Join(errs...)
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}
