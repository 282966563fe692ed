package route

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressLabel marks our IPv4 addresses on kernels before 5.18, which keep no
// protocol number with an address.
const addressLabel = "lo:myelin"

// quiet is what our IPv6 addresses are added with: no duplicate address
// detection, which would make them unusable for a second, and no prefix route.
// On kernels before 5.18 this unusual pair is also what tells them from others.
const quiet = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE

// Address is a row of the table of addresses that the host must hold: the
// gateway addresses of its pods, on the loopback device.
type Address struct {
	Prefix netip.Prefix      `json:"prefix"`
	Owner  string            `json:"owner"`
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; their status does not count.
func (a *Address) Equal(o *Address) bool { return a.Prefix == o.Prefix && a.Owner == o.Owner }

// TableHeader names the columns of TableRow.
func (*Address) TableHeader() []string { return []string{"Prefix", "Device", "Owner", "Status"} }

// TableRow is the row as text.
func (a *Address) TableRow() []string {
	return []string{a.Prefix.String(), "lo", a.Owner, a.Status.String()}
}

// newAddressTable makes the table of addresses in db.
func newAddressTable(db *statedb.DB) (statedb.RWTable[*Address], error) {
	return statedb.NewTable(db, "addresses", statedb.Index[*Address, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(a *Address) index.KeySet { return index.NewKeySet(index.NetIPPrefix(a.Prefix)) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
		Unique:     true,
	})
}

func addressStatus(a *Address) *reconciler.Status { return &a.Status }

type addressOps struct{ kernel *Kernel }

// Update adds the address, and sets the loopback device up if it is not. An
// address that is there is left alone: writing it again would make the kernel
// tell of a change, to which the loop would answer by writing it again.
func (o *addressOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *Address) error {
	lo, err := o.kernel.LinkByName("lo")
	if err == nil && lo.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = o.kernel.LinkSetUp(lo)
	}
	there := false
	if err == nil {
		there, err = o.has(lo, a.Prefix)
	}
	if err == nil && !there {
		address := &netlink.Addr{IPNet: ipNet(a.Prefix), Protocol: Protocol}
		if a.Prefix.Addr().Is4() {
			address.Label = addressLabel
		} else {
			address.Flags = quiet
		}
		err = o.kernel.AddrReplace(lo, address)
	}
	if err != nil {
		return fmt.Errorf("add address %s to lo: %w", a.Prefix, err)
	}
	return nil
}

// has reports whether the device has the address.
func (o *addressOps) has(lo netlink.Link, p netip.Prefix) (bool, error) {
	var list []netlink.Addr
	err := dump(func() (err error) {
		list, err = o.kernel.AddrList(lo, familyOf(p.Addr()))
		return err
	})
	return slices.ContainsFunc(list, func(a netlink.Addr) bool {
		have, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		return netip.PrefixFrom(have.Unmap(), bits) == p
	}), err
}

// Delete removes the address.
func (o *addressOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *Address) error {
	lo, err := o.kernel.LinkByName("lo")
	if err == nil {
		err = o.kernel.AddrDel(lo, &netlink.Addr{IPNet: ipNet(a.Prefix)})
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("delete address %s from lo: %w", a.Prefix, err)
	}
	return nil
}

// Prune deletes our addresses that have no row.
func (o *addressOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Address, statedb.Revision]) error {
	lo, err := o.kernel.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("list addresses of lo: %w", err)
	}
	var list []netlink.Addr
	err = dump(func() (err error) {
		list, err = o.kernel.AddrList(lo, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return fmt.Errorf("list addresses of lo: %w", err)
	}
	wanted := map[netip.Prefix]bool{}
	for a := range rows {
		wanted[a.Prefix] = true
	}
	var errs []error
	for _, a := range list {
		address, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if wanted[netip.PrefixFrom(address.Unmap(), bits)] || !ours(a) {
			continue
		}
		if err := o.kernel.AddrDel(lo, &a); err != nil && !notFound(err) {
			errs = append(errs, fmt.Errorf("delete address %s from lo: %w", a.IPNet, err))
		}
	}
	return errors.Join(errs...)
}

// ours reports whether an address on the loopback device was added by us.
func ours(a netlink.Addr) bool {
	if a.Protocol != 0 {
		return a.Protocol == Protocol
	}
	ones, bits := a.Mask.Size()
	return ones == bits && (a.Label == addressLabel || bits == 128 && a.Flags&quiet == quiet)
}
