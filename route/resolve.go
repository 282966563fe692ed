package route

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
)

// NextHop is a row of the table of neighbours that must stay resolved: other
// nodes on the link of a wire, and default gateways. The datapath looks their
// link-layer addresses up with bpf_fib_lookup, which starts no resolution.
type NextHop struct {
	Device  string     `json:"device"`
	Address netip.Addr `json:"address"`
	For     string     `json:"for"` // "node NAME" or "default gateway"
	// Managed says that the kernel itself keeps the neighbour resolved
	// (NTF_EXT_MANAGED, kernel 5.16). Otherwise the agent asks again and again.
	Managed bool              `json:"managed"`
	MAC     net.HardwareAddr  `json:"mac,omitempty"` // as last seen, empty while unresolved
	State   string            `json:"state"`         // as last seen, in the words of ip-neighbour(8)
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was seen does not count.
func (n *NextHop) Equal(o *NextHop) bool {
	return n.Device == o.Device && n.Address == o.Address && n.For == o.For
}

func (n *NextHop) id() string { return n.Address.String() + "|" + n.Device }

// TableHeader names the columns of TableRow.
func (*NextHop) TableHeader() []string {
	return []string{"Address", "Device", "For", "MAC", "State", "Managed", "Status"}
}

// TableRow is the row as text.
func (n *NextHop) TableRow() []string {
	return []string{
		n.Address.String(), n.Device, n.For, n.MAC.String(), n.State, fmt.Sprint(n.Managed), n.Status.String(),
	}
}

func nextHopID() statedb.Index[*NextHop, string] {
	return statedb.Index[*NextHop, string]{
		Name:       "id",
		FromObject: func(n *NextHop) index.KeySet { return index.NewKeySet(index.String(n.id())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// newNextHopTable makes the table of next hops in db.
func newNextHopTable(db *statedb.DB) (statedb.RWTable[*NextHop], error) {
	return statedb.NewTable(db, "nexthops", nextHopID())
}

func nextHopStatus(n *NextHop) *reconciler.Status { return &n.Status }

type nextHopOps struct{ kernel *Kernel }

// Update asks the kernel to keep the neighbour resolved. Kernels that don't
// know how ignore the extended flag, and resolve the neighbour once. What the
// operator has set for good needs no resolution and is left alone.
func (o *nextHopOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, n *NextHop) error {
	if err := o.resolve(n); err != nil {
		return fmt.Errorf("resolve %s on %s: %w", n.Address, n.Device, err)
	}
	return nil
}

func (o *nextHopOps) resolve(n *NextHop) error {
	link, err := o.kernel.LinkByName(n.Device)
	if err != nil {
		return err
	}
	have, ok, err := o.kernel.neighbour(link.Attrs().Index, n.Address)
	if err != nil || ok && have.state&netlink.NUD_PERMANENT != 0 {
		return err
	}
	return o.kernel.setNeighbour(kernelNeighbour{
		link: link.Attrs().Index, address: n.Address, state: netlink.NUD_NONE,
		flags: netlink.NTF_EXT_LEARNED | netlink.NTF_USE, extended: netlink.NTF_EXT_MANAGED,
	})
}

// Delete removes the neighbour, so that the kernel stops to resolve it. Should
// a program use it the kernel makes a new one.
func (o *nextHopOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, n *NextHop) error {
	link, err := o.kernel.LinkByName(n.Device)
	if err == nil {
		var have kernelNeighbour
		have, _, err = o.kernel.neighbour(link.Attrs().Index, n.Address)
		if err == nil && have.protocol == Protocol {
			err = o.kernel.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Address.AsSlice()})
		}
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("stop to resolve %s on %s: %w", n.Address, n.Device, err)
	}
	return nil
}

// Prune removes the neighbours that an earlier agent had the kernel resolve
// and that have no row.
func (o *nextHopOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*NextHop, statedb.Revision]) error {
	wanted := map[string]bool{}
	for n := range rows {
		wanted[n.id()] = true
	}
	return o.kernel.pruneNeighbours(func(n kernelNeighbour, device string) bool {
		return n.state&netlink.NUD_PERMANENT != 0 || wanted[n.address.String()+"|"+device]
	})
}

// look reads the state of all next hops into their rows, asks again for those
// that the kernel does not manage, and has the reconciler add those that are
// gone. Called every few seconds.
func (r *Routes) look() error {
	txn := r.DB.ReadTxn()
	if r.NextHops.NumObjects(txn) == 0 {
		return nil
	}
	list, err := r.kernel.neighbours()
	if err != nil {
		return err
	}
	seen := map[string]kernelNeighbour{}
	for _, n := range list {
		if d, _, ok := r.Devices.Get(txn, DeviceByIndex(n.link)); ok {
			seen[n.address.String()+"|"+d.Name] = n
		}
	}
	wtxn := r.DB.WriteTxn(r.NextHops)
	defer wtxn.Abort()
	for row := range r.NextHops.All(wtxn) {
		next := *row
		n, ok := seen[row.id()]
		next.MAC, next.State, next.Managed = n.mac, stateName(n.state), n.extended&netlink.NTF_EXT_MANAGED != 0
		switch {
		case row.Status.Kind != reconciler.StatusKindDone:
			// The reconciler owns the row for now, and would lose against this write.
			continue
		case !ok || !next.Managed && n.state&netlink.NUD_PERMANENT == 0:
			next.Status = reconciler.StatusRefreshing()
		case next.State == row.State && next.Managed == row.Managed && next.MAC.String() == row.MAC.String():
			continue
		}
		if _, _, err := r.NextHops.Insert(wtxn, &next); err != nil {
			return fmt.Errorf("write next hop: %w", err)
		}
	}
	wtxn.Commit()
	return nil
}

// stateName is a neighbour's state as ip-neighbour(8) writes it.
func stateName(state int) string {
	switch {
	case state&netlink.NUD_PERMANENT != 0:
		return "permanent"
	case state&netlink.NUD_NOARP != 0:
		return "noarp"
	case state&netlink.NUD_REACHABLE != 0:
		return "reachable"
	case state&netlink.NUD_STALE != 0:
		return "stale"
	case state&netlink.NUD_DELAY != 0:
		return "delay"
	case state&netlink.NUD_PROBE != 0:
		return "probe"
	case state&netlink.NUD_FAILED != 0:
		return "failed"
	case state&netlink.NUD_INCOMPLETE != 0:
		return "incomplete"
	}
	return "none"
}
