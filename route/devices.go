package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/internal/table"
)

// devices keeps the device table equal to the kernel. What it remembers
// between two readings is only what the kernel said, so that a change costs a
// question about what has changed and not about every pod.
type devices struct {
	kernel *Kernel
	db     *statedb.DB
	table  statedb.RWTable[*Device]

	links     map[int]Device
	addresses map[int][]netip.Prefix
	defaults  map[int]Device // only Gateways, Default4 and Default6 are set
}

// read asks the kernel about c.
func (d *devices) read(c changes) error {
	all := c.all || d.links == nil
	var err error
	switch {
	case all:
		err = d.readLinks()
	default:
		for i := range c.links {
			if err = d.readLink(i); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	// The addresses of pod links are link-local at most, and are not needed.
	wanted := all
	for _, indexes := range []map[int]bool{c.links, c.addresses} {
		for i := range indexes {
			if link, ok := d.links[i]; ok && link.Kind != Pod {
				wanted = true
			}
		}
	}
	if wanted {
		if err := d.readAddresses(); err != nil {
			return err
		}
	}
	// IPv4 routes of a link that goes down vanish without a notification.
	if wanted || c.defaults {
		return d.readDefaults()
	}
	return nil
}

func (d *devices) readLinks() error {
	var list []netlink.Link
	err := dump(func() (err error) {
		list, err = d.kernel.LinkList()
		return err
	})
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	old := d.links
	d.links = make(map[int]Device, len(list))
	for _, link := range list {
		d.links[link.Attrs().Index] = d.convert(link, old[link.Attrs().Index])
	}
	return nil
}

func (d *devices) readLink(i int) error {
	link, err := d.kernel.LinkByIndex(i)
	switch {
	case notFound(err):
		delete(d.links, i)
	case err != nil:
		return fmt.Errorf("read link %d: %w", i, err)
	default:
		d.links[i] = d.convert(link, d.links[i])
	}
	return nil
}

func (d *devices) convert(link netlink.Link, old Device) Device {
	a := link.Attrs()
	row := Device{
		Index:   a.Index,
		Name:    a.Name,
		Type:    link.Type(),
		MTU:     a.MTU,
		MAC:     a.HardwareAddr,
		Up:      a.RawFlags&unix.IFF_UP != 0,
		Carrier: a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown,
		VLAN:    vlanOf(link),
		L3:      layer3(a.EncapType),
		Master:  a.MasterIndex,
		Sizes:   SizesOf(a),
		TSOMax:  int(a.TSOMaxSize),
	}
	if kind, _ := (selection{}).classify(&row); kind == Pod {
		row.Kind = Pod
		row.Driver = row.Type
		return row
	}
	row.Driver = old.Driver
	if old.Name != row.Name {
		row.Driver = d.driver(row.Name, row.Type)
	}
	return row
}

// vlanOf returns nil for a device that is no VLAN device.
func vlanOf(link netlink.Link) *VLAN {
	v, ok := link.(*netlink.Vlan)
	if !ok {
		return nil
	}
	row := &VLAN{ID: uint16(v.VlanId), QinQ: v.VlanProtocol == netlink.VLAN_PROTOCOL_8021AD}
	if v.NetNsID == -1 {
		row.Below = v.ParentIndex
	}
	return row
}

// layer3 reports whether devices of the link type have no link-layer header: those that the kernel transmits without
// one (dev_is_mac_header_xmit).
func layer3(encapType string) bool {
	return slices.Contains([]string{"none", "ipip", "tunnel6", "sit", "gre", "void", "ppp",
		"unknown519" /* ARPHRD_RAWIP */, "unknown823" /* ARPHRD_IP6GRE */}, encapType)
}

// driver asks by ioctl, which needs no sysfs of the right namespace. Devices
// without ethtool operations answer with an error; their type says it all.
func (d *devices) driver(name, kind string) string {
	driver := kind
	_ = d.kernel.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
		if err == nil {
			driver = unix.ByteSliceToString(info.Driver[:])
		}
		return err
	})
	return driver
}

func (d *devices) readAddresses() error {
	var list []netlink.Addr
	err := dump(func() (err error) {
		list, err = d.kernel.AddrList(nil, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	d.addresses = map[int][]netip.Prefix{}
	for _, a := range list {
		if address, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			d.addresses[a.LinkIndex] = append(d.addresses[a.LinkIndex], netip.PrefixFrom(address.Unmap(), bits))
		}
	}
	for _, prefixes := range d.addresses {
		slices.SortFunc(prefixes, netip.Prefix.Compare)
	}
	return nil
}

func (d *devices) readDefaults() error {
	d.defaults = map[int]Device{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		var list []netlink.Route
		err := dump(func() (err error) {
			// Dst nil in the filter stands for the default route of the family.
			list, err = d.kernel.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
			return err
		})
		if err != nil {
			return fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range list {
			hops := []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
			if len(r.MultiPath) > 0 {
				hops = r.MultiPath
			}
			for _, hop := range hops {
				d.addDefault(hop, family, r.Type)
			}
		}
	}
	return nil
}

func (d *devices) addDefault(hop *netlink.NexthopInfo, family, kind int) {
	if hop.LinkIndex == 0 || kind != unix.RTN_UNICAST {
		return
	}
	row := d.defaults[hop.LinkIndex]
	row.Default4 = row.Default4 || family == netlink.FAMILY_V4
	row.Default6 = row.Default6 || family == netlink.FAMILY_V6
	if gateway, ok := netip.AddrFromSlice(hop.Gw); ok && !slices.Contains(row.Gateways, gateway.Unmap()) {
		row.Gateways = append(row.Gateways, gateway.Unmap())
		slices.SortFunc(row.Gateways, netip.Addr.Compare)
	}
	d.defaults[hop.LinkIndex] = row
}

// write brings the table up to date with what was read, and returns the rows
// that are new, gone, or differ in what routes depend on.
func (d *devices) write(s selection) (moved []*Device, err error) {
	rows := make([]*Device, 0, len(d.links))
	for i, link := range d.links {
		row := link
		row.Addresses = d.addresses[i]
		row.Gateways, row.Default4, row.Default6 = d.defaults[i].Gateways, d.defaults[i].Default4,
			d.defaults[i].Default6
		row.Kind, row.Why = s.classify(&row)
		if row.Kind == Pod {
			row.Addresses = nil
		}
		rows = append(rows, &row)
	}
	slices.SortFunc(rows, func(a, b *Device) int { return a.Index - b.Index })
	moved, changed := d.compare(rows)
	if !changed {
		return nil, nil
	}
	wtxn := d.db.WriteTxn(d.table)
	defer wtxn.Abort()
	if _, err := table.Replace(wtxn, d.table, d.table.All(wtxn), rows, (*Device).Equal); err != nil {
		return nil, err
	}
	wtxn.Commit()
	return moved, nil
}

// compare tells whether rows differ from the table, and which devices, as they
// were and as they are, moved.
func (d *devices) compare(rows []*Device) (moved []*Device, changed bool) {
	txn := d.db.ReadTxn()
	for _, row := range rows {
		old, _, ok := d.table.Get(txn, DeviceByIndex(row.Index))
		if ok && old.Equal(row) {
			continue
		}
		changed = true
		if ok && (old.Name != row.Name || !slices.Equal(old.Addresses, row.Addresses)) {
			moved = append(moved, old)
		}
		if !ok || old.Name != row.Name || old.Up != row.Up || old.Carrier != row.Carrier ||
			!slices.Equal(old.Addresses, row.Addresses) {
			moved = append(moved, row)
		}
	}
	if d.table.NumObjects(txn) == len(rows) && !changed {
		return moved, changed
	}
	for old := range d.table.All(txn) {
		if _, ok := d.links[old.Index]; !ok {
			moved, changed = append(moved, old), true
		}
	}
	return moved, changed
}
