// Package tunnel keeps the VXLAN device that carries packets between pods of
// different nodes when the routing mode is tunnel (RFC 7348). The device has no
// peers of its own: the datapath puts the other node's address and the VNI on
// each packet (collect metadata mode).
package tunnel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"net"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// DeviceName is the name of the device on every node.
const DeviceName = "myelin_vxlan"

// defaultPort is the UDP port if the configuration names none: the one that
// Linux used before IANA assigned 4789, and Cilium's default.
const defaultPort = 8472

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// Tunnel is the row of the tunnel device. There is one row, also when no
// tunnel is wanted: then it says that the device must not be there.
type Tunnel struct {
	Name    string            `json:"name"`
	Wanted  bool              `json:"wanted"`
	Port    int               `json:"port"`
	MTU     int               `json:"mtu"` // bytes of the packets of pods
	MAC     net.HardwareAddr  `json:"mac"`
	Problem string            `json:"problem,omitempty"` // why it can't be made at all
	Index   int               `json:"index,omitempty"`   // of the device, as found
	Note    string            `json:"note,omitempty"`    // what was done last, and why
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was found does not count.
func (t *Tunnel) Equal(o *Tunnel) bool {
	return t.Name == o.Name && t.Wanted == o.Wanted && t.Port == o.Port && t.MTU == o.MTU &&
		t.MAC.String() == o.MAC.String() && t.Problem == o.Problem
}

func (t *Tunnel) status() *reconciler.Status { return &t.Status }

// found takes what was found by the row before.
func (t *Tunnel) found(o *Tunnel) { t.Note, t.Index = o.Note, o.Index }

// TableHeader names the columns of TableRow.
func (*Tunnel) TableHeader() []string {
	return []string{"Name", "Wanted", "Port", "MTU", "MAC", "Index", "Note", "Status"}
}

// TableRow is the row as text.
func (t *Tunnel) TableRow() []string {
	return []string{
		t.Name, fmt.Sprint(t.Wanted), fmt.Sprint(t.Port), fmt.Sprint(t.MTU), t.MAC.String(),
		fmt.Sprint(t.Index), t.Note,
		t.Status.String(),
	}
}

func byName() statedb.Index[*Tunnel, string] {
	return statedb.Index[*Tunnel, string]{
		Name:       "name",
		FromObject: func(t *Tunnel) index.KeySet { return index.NewKeySet(index.String(t.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// ByName queries the row of a device.
func ByName(name string) statedb.Query[*Tunnel] {
	i := byName()
	return i.Query(name)
}

// newTable makes the table of tunnel devices in db.
func newTable(db *statedb.DB) (statedb.RWTable[*Tunnel], error) {
	return statedb.NewTable(db, "tunnels", byName())
}

// macOf is the link-layer address of a node's tunnel device. It follows from the
// node's name, so that it is the same after a restart. The address is locally
// administered and unicast (IEEE 802, clause 8.4).
func macOf(node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(DeviceName + " " + node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

func statusOf(t *Tunnel) *reconciler.Status { return &t.Status }

type ops struct{ kernel *route.Kernel }

// Update makes the device what the row wants. A VXLAN device of our name that
// fits is kept with everything that hangs on it; one that does not fit is
// replaced; a device of another type is not ours, and an error.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, t *Tunnel) error {
	t.Index = 0
	if !t.Wanted {
		removed, err := Remove(o.kernel)
		if removed {
			t.Note = "removed: the routing mode is not tunnel"
		}
		return err
	}
	if t.Problem != "" {
		return errors.New(t.Problem)
	}
	link, err := o.device(t)
	if err != nil {
		return fmt.Errorf("make VXLAN device %s: %w", t.Name, err)
	}
	t.Index = link.Attrs().Index
	if err := o.adjust(link, t); err != nil {
		return fmt.Errorf("set up VXLAN device %s: %w", t.Name, err)
	}
	return nil
}

// Delete removes the device.
func (o *ops) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *Tunnel) error {
	_, err := Remove(o.kernel)
	return err
}

// Prune does nothing: the row that says that no tunnel is wanted removes what
// an earlier agent left.
func (*ops) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*Tunnel, statedb.Revision]) error {
	return nil
}

// Remove removes the device that an agent made, and reports whether there was one.
func Remove(k *route.Kernel) (removed bool, err error) {
	if removed, err = k.RemoveDevice(DeviceName, "vxlan"); err != nil {
		err = fmt.Errorf("remove VXLAN device %s: %w", DeviceName, err)
	}
	return removed, err
}

// device finds or makes the device.
func (o *ops) device(t *Tunnel) (netlink.Link, error) {
	want := &netlink.Vxlan{
		LinkAttrs:      netlink.LinkAttrs{Name: t.Name, MTU: t.MTU, HardwareAddr: t.MAC, TxQLen: -1},
		FlowBased:      true,
		Port:           t.Port,
		UDP6ZeroCSumTx: true,
		UDP6ZeroCSumRx: true,
	}
	why := ""
	link, err := o.kernel.LinkByName(t.Name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
	case err != nil:
		return nil, err
	default:
		have, ok := link.(*netlink.Vxlan)
		if !ok {
			return nil, fmt.Errorf("there is a device of that name, of type %s: remove or rename it", link.Type())
		}
		if why = misfit(have, want); why == "" {
			if t.Note == "" {
				t.Note = "adopted"
			}
			return link, nil
		}
		if err := o.kernel.LinkDel(link); err != nil {
			return nil, fmt.Errorf("replace it (%s): %w", why, err)
		}
	}
	if err := o.kernel.LinkAdd(want); err != nil {
		return nil, err
	}
	t.Note = "made"
	if why != "" {
		t.Note = "replaced: " + why
	}
	// Without a link-local address the device sends nothing on its own, like
	// router solicitations and MLD reports. Kernels without IPv6 refuse this.
	if link, err = o.kernel.LinkByName(t.Name); err == nil {
		_ = o.kernel.LinkSetIP6AddrGenMode(link, addrGenNone)
	}
	return link, err
}

// misfit says what of a device can't be changed and is not as wanted.
func misfit(have, want *netlink.Vxlan) string {
	var differ []string
	note := func(name string, have, want any) {
		if have != want {
			differ = append(differ, fmt.Sprintf("%s was %v, not %v", name, have, want))
		}
	}
	note("external", have.FlowBased, want.FlowBased)
	note("port", have.Port, want.Port)
	note("learning", have.Learning, want.Learning)
	note("udp6zerocsumtx", have.UDP6ZeroCSumTx, want.UDP6ZeroCSumTx)
	note("udp6zerocsumrx", have.UDP6ZeroCSumRx, want.UDP6ZeroCSumRx)
	note("gbp", have.GBP, want.GBP)
	return strings.Join(differ, ", ")
}

// adjust sets what can be changed on a living device.
func (o *ops) adjust(link netlink.Link, t *Tunnel) error {
	a := link.Attrs()
	if a.MTU != t.MTU {
		if err := o.kernel.LinkSetMTU(link, t.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", t.MTU, err)
		}
	}
	if a.HardwareAddr.String() != t.MAC.String() {
		if err := o.kernel.LinkSetHardwareAddr(link, t.MAC); err != nil {
			return fmt.Errorf("address %s: %w", t.MAC, err)
		}
	}
	if a.RawFlags&unix.IFF_NOARP == 0 {
		if err := o.kernel.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("ARP off: %w", err)
		}
	}
	if a.RawFlags&unix.IFF_UP == 0 {
		err := o.kernel.LinkSetUp(link)
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("UDP port %d is in use by another tunnel or program: %w", t.Port, err)
		}
		if err != nil {
			return fmt.Errorf("set up: %w", err)
		}
	}
	return nil
}
