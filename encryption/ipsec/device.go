package ipsec

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// DeviceName is the name of the device on every node whose packets IPsec encrypts.
const DeviceName = "myelin_ipsec0"

// kind is the type of the device, as "ip -d link" names it.
const kind = "xfrm"

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// Device is the row of the device.
type Device struct {
	Name    string            `json:"name"`
	MTU     int               `json:"mtu"`               // bytes of the packets of pods
	Problem string            `json:"problem,omitempty"` // why it can't be made at all
	Index   int               `json:"index,omitempty"`   // of the device, as found
	Note    string            `json:"note,omitempty"`    // what was done last
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was found does not count.
func (d *Device) Equal(o *Device) bool {
	return d.Name == o.Name && d.MTU == o.MTU && d.Problem == o.Problem
}

func (d *Device) status() *reconciler.Status { return &d.Status }

// found takes what was found by the row before.
func (d *Device) found(o *Device) { d.Note, d.Index = o.Note, o.Index }

// TableHeader names the columns of TableRow.
func (*Device) TableHeader() []string { return []string{"Name", "MTU", "Index", "Note", "Status"} }

// TableRow is the row as text.
func (d *Device) TableRow() []string {
	return []string{d.Name, fmt.Sprint(d.MTU), fmt.Sprint(d.Index), d.Note, d.Status.String()}
}

func deviceName() statedb.Index[*Device, string] {
	return statedb.Index[*Device, string]{
		Name:       "name",
		FromObject: func(d *Device) index.KeySet { return index.NewKeySet(index.String(d.Name)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

func deviceByName(name string) statedb.Query[*Device] {
	i := deviceName()
	return i.Query(name)
}

// deviceOps makes the kernel's device what its row wants.
type deviceOps struct{ kernel *route.Kernel }

// Update keeps a device of our name and interface identifier. A device of another type is not ours, and an error.
func (o *deviceOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, d *Device) error {
	d.Index = 0
	if d.Problem != "" {
		return errors.New(d.Problem)
	}
	link, err := o.device(d)
	if err == nil && link.Attrs().MTU != d.MTU {
		if err = o.kernel.LinkSetMTU(link, d.MTU); err != nil {
			err = fmt.Errorf("MTU %d: %w", d.MTU, err)
		}
	}
	if err == nil && link.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = o.kernel.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("make device %s: %w", d.Name, err)
	}
	d.Index = link.Attrs().Index
	return nil
}

// Delete removes the device.
func (o *deviceOps) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *Device) error {
	_, err := removeDevice(o.kernel)
	return err
}

// Prune does nothing: there is one device, by name.
func (*deviceOps) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*Device, statedb.Revision]) error {
	return nil
}

// device finds or makes the device.
func (o *deviceOps) device(d *Device) (netlink.Link, error) {
	link, err := o.kernel.LinkByName(d.Name)
	var missing netlink.LinkNotFoundError
	x, is := link.(*netlink.Xfrmi)
	switch {
	case errors.As(err, &missing):
	case err != nil:
		return nil, err
	case !is || x.Ifid != mark:
		return nil, fmt.Errorf("there is another device of that name, of type %s: remove or rename it", link.Type())
	default:
		return link, nil
	}
	add := &netlink.Xfrmi{LinkAttrs: netlink.LinkAttrs{Name: d.Name, MTU: d.MTU, TxQLen: -1}, Ifid: mark}
	if err := o.kernel.LinkAdd(add); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("the kernel has no XFRM interfaces (%w)", err)
		}
		return nil, err
	}
	d.Note = "made"
	// Without a link-local address the device sends nothing on its own, like router solicitations and MLD reports.
	// Kernels without IPv6 refuse this.
	if link, err = o.kernel.LinkByName(d.Name); err == nil {
		_ = o.kernel.LinkSetIP6AddrGenMode(link, addrGenNone)
	}
	return link, err
}

func removeDevice(k *route.Kernel) (removed bool, err error) {
	if removed, err = k.RemoveDevice(DeviceName, kind); err != nil {
		err = fmt.Errorf("remove device %s: %w", DeviceName, err)
	}
	return removed, err
}

// Remove removes the device that an agent made, its states and policies, and reports whether there was a device.
func Remove(k *route.Kernel) (removed bool, err error) {
	err = clear(k, setOf(objects{}), nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = nil // a kernel without XFRM has none
	}
	removed, deviceErr := removeDevice(k)
	return removed, errors.Join(err, deviceErr)
}
