package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Neighbour is a row of the table of permanent neighbours: a pod's address on
// its link. With it the host never has to ask a pod by ARP or ND.
type Neighbour struct {
	Device  string            `json:"device"`
	Address netip.Addr        `json:"address"`
	MAC     net.HardwareAddr  `json:"mac"`
	Owner   string            `json:"owner"`
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; their status does not count.
func (n *Neighbour) Equal(o *Neighbour) bool {
	return n.Device == o.Device && n.Address == o.Address && bytes.Equal(n.MAC, o.MAC) && n.Owner == o.Owner
}

func (n *Neighbour) id() string { return n.Address.String() + "|" + n.Device }

// String is the neighbour in the words of ip-neighbour(8).
func (n *Neighbour) String() string {
	return fmt.Sprintf("%s lladdr %s dev %s", n.Address, n.MAC, n.Device)
}

// TableHeader names the columns of TableRow.
func (*Neighbour) TableHeader() []string {
	return []string{"Address", "MAC", "Device", "Owner", "Status"}
}

// TableRow is the row as text.
func (n *Neighbour) TableRow() []string {
	return []string{n.Address.String(), n.MAC.String(), n.Device, n.Owner, n.Status.String()}
}

func neighbourOwner() statedb.Index[*Neighbour, string] {
	return statedb.Index[*Neighbour, string]{
		Name:       "owner",
		FromObject: func(n *Neighbour) index.KeySet { return index.NewKeySet(index.String(n.Owner)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}
}

// neighbourByOwner queries the neighbours of an owner, e.g. "pod mye12345678".
func neighbourByOwner(owner string) statedb.Query[*Neighbour] {
	i := neighbourOwner()
	return i.Query(owner)
}

// newNeighbourTable makes the table of permanent neighbours in db.
func newNeighbourTable(db *statedb.DB) (statedb.RWTable[*Neighbour], error) {
	return statedb.NewTable(db, "neighbours", statedb.Index[*Neighbour, string]{
		Name:       "id",
		FromObject: func(n *Neighbour) index.KeySet { return index.NewKeySet(index.String(n.id())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}, neighbourOwner())
}

func neighbourStatus(n *Neighbour) *reconciler.Status { return &n.Status }

type neighbourOps struct{ kernel *Kernel }

// Update writes the neighbour, over whatever the kernel has for the address.
func (o *neighbourOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, n *Neighbour) error {
	link, err := o.kernel.LinkByName(n.Device)
	if err == nil {
		err = o.kernel.setNeighbour(kernelNeighbour{
			link: link.Attrs().Index, address: n.Address, mac: n.MAC, state: netlink.NUD_PERMANENT,
		})
	}
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", n, err)
	}
	return nil
}

// Delete removes the neighbour; one whose link is gone is gone as well.
func (o *neighbourOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, n *Neighbour) error {
	link, err := o.kernel.LinkByName(n.Device)
	if err == nil {
		err = o.kernel.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Address.AsSlice()})
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("delete neighbour %s: %w", n, err)
	}
	return nil
}

// Prune deletes the permanent neighbours that carry our protocol number and
// have no row.
func (o *neighbourOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Neighbour, statedb.Revision]) error {
	wanted := map[string]bool{}
	for n := range rows {
		wanted[n.id()] = true
	}
	return o.kernel.pruneNeighbours(func(n kernelNeighbour, device string) bool {
		return n.state&netlink.NUD_PERMANENT == 0 || wanted[n.address.String()+"|"+device]
	})
}

// kernelNeighbour is a neighbour as in rtnetlink(7), with the attributes that
// the netlink library has no field for.
type kernelNeighbour struct {
	link     int
	address  netip.Addr
	mac      net.HardwareAddr
	state    int
	flags    int
	extended uint32 // NDA_FLAGS_EXT, kernel 5.16; older ones ignore it
	protocol byte
}

// setNeighbour creates or replaces n, marked with our protocol number.
func (k *Kernel) setNeighbour(n kernelNeighbour) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	request.Sockets = k.raw
	request.AddData(&netlink.Ndmsg{
		Family: uint8(familyOf(n.address)), Index: uint32(n.link), State: uint16(n.state), Flags: uint8(n.flags),
	})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, n.address.AsSlice()))
	if n.mac != nil {
		request.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, n.mac))
	}
	if n.extended != 0 {
		request.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(n.extended)))
	}
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{Protocol}))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// neighbour reads one neighbour; ok is false if the kernel has none.
func (k *Kernel) neighbour(link int, address netip.Addr) (n kernelNeighbour, ok bool, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.Sockets = k.raw
	request.AddData(&netlink.Ndmsg{Family: uint8(familyOf(address)), Index: uint32(link)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, address.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if notFound(err) {
		return n, false, nil
	}
	if err != nil || len(messages) == 0 {
		return n, false, err
	}
	n, ok = parseNeighbour(messages[0])
	return n, ok, nil
}

// neighbours reads all neighbours of both families.
func (k *Kernel) neighbours() (list []kernelNeighbour, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var messages [][]byte
		err := dump(func() (err error) {
			request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
			request.Sockets = k.raw
			request.AddData(&netlink.Ndmsg{Family: family})
			messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		for _, m := range messages {
			if n, ok := parseNeighbour(m); ok {
				list = append(list, n)
			}
		}
	}
	return list, nil
}

func parseNeighbour(message []byte) (n kernelNeighbour, ok bool) {
	if len(message) < unix.SizeofNdMsg {
		return n, false
	}
	native := nl.NativeEndian()
	n.link = int(native.Uint32(message[4:]))
	n.state = int(native.Uint16(message[8:]))
	n.flags = int(message[10])
	attributes, err := nl.ParseRouteAttr(message[unix.SizeofNdMsg:])
	if err != nil {
		return n, false
	}
	for _, a := range attributes {
		switch {
		case a.Attr.Type == netlink.NDA_DST:
			n.address, ok = netip.AddrFromSlice(a.Value)
		case a.Attr.Type == netlink.NDA_LLADDR:
			n.mac = a.Value
		case a.Attr.Type == netlink.NDA_PROTOCOL && len(a.Value) > 0:
			n.protocol = a.Value[0]
		case a.Attr.Type == netlink.NDA_FLAGS_EXT && len(a.Value) >= 4:
			n.extended = native.Uint32(a.Value)
		}
	}
	return n, ok
}

// pruneNeighbours deletes those of our neighbours that keep does not know.
func (k *Kernel) pruneNeighbours(keep func(n kernelNeighbour, device string) bool) error {
	list, err := k.neighbours()
	if err != nil {
		return err
	}
	names := map[int]string{}
	var errs []error
	for _, n := range list {
		if n.protocol != Protocol {
			continue
		}
		if _, ok := names[n.link]; !ok {
			if link, err := k.LinkByIndex(n.link); err == nil {
				names[n.link] = link.Attrs().Name
			}
		}
		if keep(n, names[n.link]) {
			continue
		}
		err := k.NeighDel(&netlink.Neigh{LinkIndex: n.link, IP: n.address.AsSlice()})
		if err != nil && !notFound(err) {
			errs = append(errs, fmt.Errorf("delete neighbour %s on %s: %w", n.address, names[n.link], err))
		}
	}
	return errors.Join(errs...)
}
