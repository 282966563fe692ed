package encryption

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/route"
)

// DeviceName is the name of the WireGuard device on every node.
const DeviceName = "myelin_wg0"

// RotationDevice is the name of the one that is there beside it while a node rotates its key.
const RotationDevice = "myelin_wg1"

// DeviceNames are those of all devices.
func DeviceNames() []string { return []string{DeviceName, RotationDevice} }

// The UDP ports of the devices on every node; the first is Cilium's.
const (
	port         = 51871
	rotationPort = 51872
)

func portOf(device string) int {
	if device == RotationDevice {
		return rotationPort
	}
	return port
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// Device is the row of a WireGuard device. There is one for each name, also when the device is not wanted: then it says
// that it must not be there.
type Device struct {
	Name      string `json:"name"`
	Wanted    bool   `json:"wanted"`
	Port      int    `json:"port"`
	MTU       int    `json:"mtu"` // bytes of the packets of pods
	PublicKey string `json:"publicKey,omitempty"`
	Problem   string `json:"problem,omitempty"` // why it can't be made at all
	Index     int    `json:"index,omitempty"`   // of the device, as found
	// Instance is the process that is the device, empty if the kernel is: another one starts without a key and peers.
	Instance string `json:"instance,omitempty"`
	// Made is when the device was made, or its process started: without sessions. Zero: it was adopted.
	Made   time.Time         `json:"made,omitzero"`
	Note   string            `json:"note,omitempty"` // what was done last, and why
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was found does not count.
func (d *Device) Equal(o *Device) bool {
	return d.Name == o.Name && d.Wanted == o.Wanted && d.Port == o.Port && d.MTU == o.MTU &&
		d.PublicKey == o.PublicKey && d.Problem == o.Problem
}

// of names the device until it is made anew.
func (d *Device) of() string { return instanceOf(d.Index, d.Instance) }

func (d *Device) status() *reconciler.Status { return &d.Status }

// found takes what was found by the row before.
func (d *Device) found(o *Device) {
	d.Note, d.Index, d.Instance, d.Made = o.Note, o.Index, o.Instance, o.Made
}

// TableHeader names the columns of TableRow.
func (*Device) TableHeader() []string {
	return []string{"Name", "Wanted", "Port", "MTU", "Public key", "Index", "Note", "Status"}
}

// TableRow is the row as text.
func (d *Device) TableRow() []string {
	return []string{d.Name, fmt.Sprint(d.Wanted), fmt.Sprint(d.Port), fmt.Sprint(d.MTU), d.PublicKey,
		fmt.Sprint(d.Index), d.Note, d.Status.String()}
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

// control configures WireGuard devices; wgctrl's client does.
type control interface {
	Device(name string) (*wgtypes.Device, error)
	ConfigureDevice(name string, c wgtypes.Config) error
	Close() error
}

// deviceOps makes the kernel's device what its row wants.
type deviceOps struct {
	kernel    *route.Kernel
	control   control
	processes *processes
	keys      *keyring // nil without encryption
}

// Update keeps a WireGuard device of our name with all its sessions. A device of another type is not ours, and an
// error.
func (o *deviceOps) Update(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, d *Device) error {
	d.Index, d.Instance = 0, ""
	if !d.Wanted {
		removed, err := remove(o.kernel, d.Name)
		if removed {
			d.Note = "removed: it is not wanted"
		}
		return err
	}
	if d.Problem != "" {
		return errors.New(d.Problem)
	}
	link, err := o.device(ctx, d)
	if err != nil {
		return fmt.Errorf("make WireGuard device %s: %w", d.Name, err)
	}
	if err := o.adjust(link, d); err != nil {
		return fmt.Errorf("set up WireGuard device %s: %w", d.Name, err)
	}
	d.Index = link.Attrs().Index
	if about, _, ok := o.processes.of(d.Name); ok {
		d.Instance, d.Made = about.Instance(), about.Started
	}
	return nil
}

// Delete removes the device.
func (o *deviceOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, d *Device) error {
	_, err := remove(o.kernel, d.Name)
	return err
}

// Prune does nothing: the row that says that no device is wanted removes what an earlier agent left.
func (*deviceOps) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*Device, statedb.Revision]) error {
	return nil
}

// tunType is the type of TUN devices.
const tunType = "tuntap"

// Remove removes the devices that an agent made, and returns their names.
func Remove(k *route.Kernel) (removed []string, err error) {
	for _, name := range DeviceNames() {
		was, err := remove(k, name)
		if was {
			removed = append(removed, name)
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

func remove(k *route.Kernel, name string) (removed bool, err error) {
	for _, kind := range deviceTypes() { // a process ends with its device
		was, err := k.RemoveDevice(name, kind)
		if err != nil {
			return removed, fmt.Errorf("remove WireGuard device %s: %w", name, err)
		}
		removed = removed || was
	}
	return removed, nil
}

// deviceTypes are the types of a device that is the kernel's, or a process's.
func deviceTypes() []string { return []string{"wireguard", tunType} }

// device finds or makes the device.
func (o *deviceOps) device(ctx context.Context, d *Device) (netlink.Link, error) {
	link, err := o.kernel.LinkByName(d.Name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
	case err != nil:
		return nil, err
	case link.Type() == tunType:
		return o.userspace(ctx, d, link)
	case link.Type() != "wireguard":
		return nil, fmt.Errorf("there is a device of that name, of type %s: remove or rename it", link.Type())
	default:
		if d.Note == "" {
			d.Note = "adopted"
		}
		return link, nil
	}
	add := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: d.Name, MTU: d.MTU, TxQLen: -1}}
	if err := o.kernel.LinkAdd(add); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return o.userspace(ctx, d, nil)
		}
		return nil, err
	}
	d.Note, d.Made = "made", time.Now()
	return o.made(d)
}

// made is a device that was made just now.
func (o *deviceOps) made(d *Device) (netlink.Link, error) {
	link, err := o.kernel.LinkByName(d.Name)
	// Without a link-local address the device sends nothing on its own, like router solicitations and MLD reports.
	// Kernels without IPv6 refuse this.
	if err == nil {
		_ = o.kernel.LinkSetIP6AddrGenMode(link, addrGenNone)
	}
	return link, err
}

// adjust sets what can be changed on a device in use. Setting the key that it has would end its sessions.
func (o *deviceOps) adjust(link netlink.Link, d *Device) error {
	if link.Attrs().MTU != d.MTU {
		if err := o.kernel.LinkSetMTU(link, d.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", d.MTU, err)
		}
	}
	have, err := o.control.Device(d.Name)
	if err != nil {
		return fmt.Errorf("read its state: %w", err)
	}
	var c wgtypes.Config
	if key := o.keys.private(d.PublicKey); have.PrivateKey != key {
		c.PrivateKey = &key
	}
	if have.ListenPort != d.Port {
		c.ListenPort = &d.Port
	}
	if c.PrivateKey != nil || c.ListenPort != nil {
		if err := o.control.ConfigureDevice(d.Name, c); err != nil {
			return fmt.Errorf("key and port %d: %w", d.Port, err)
		}
	}
	if d.Name == DeviceName {
		o.keys.inForce(d.PublicKey)
	}
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	err = o.kernel.LinkSetUp(link)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is in use by another program: %w", d.Port, err)
	}
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}
