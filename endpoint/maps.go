package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/endpoint/podlink"
	"myelin/internal/table"
)

// Kernel is what a pod is to the datapath: rows by address and by link, an epoch, and programs on its link.
type Kernel struct {
	Datapath *bpf.Datapath
	Epochs   *bpf.Epochs
	// Follow adds to_pod to links: what the host sends to pods has flow rows, or is translated for Services.
	Follow bool
	// Hold, if not nil, is called before a new pod can be reached: nothing may, until its policies are known.
	Hold func(*Endpoint) error
	// Netns returns the id of the network namespace at the other end of a link,
	// as the node's namespace numbers it; false if it has none any more.
	Netns func(link int) (id int32, ok bool, err error)
	// Administers reports whether the pod may change its own network namespace,
	// and so what its kernel says of connections; nil: every pod may.
	Administers func(*Endpoint) bool
	// Gone, if not nil, is called when the datapath has forgotten an endpoint:
	// what is left of its flows may go.
	Gone func(addresses []netip.Addr)
}

// Reconcile registers the reconciler that makes the kernel equal to the table of endpoints.
func Reconcile(log *slog.Logger, db *statedb.DB, group job.Group, t statedb.RWTable[*Endpoint], k *Kernel) error {
	if _, err := table.Register(log, db, group, t, StatusOf, k); err != nil {
		return err
	}
	s := &settler{db, t, time.Now}
	group.Add(job.OneShot("lasting-links", s.run))
	return nil
}

func (k *Kernel) row(e *Endpoint) bpf.DatapathEndpoint {
	return bpf.DatapathEndpoint{
		Ifindex: uint32(e.LinkIndex), Slot: e.ID, PodMac: bpf.MAC(e.PodMAC), LinkMac: bpf.MAC(e.LinkMAC),
	}
}

// Update implements reconciler.Operations. The row of the link comes first, so that the programs know the pod's first
// packet, and those of its addresses come last, so that nothing reaches a pod without programs on its link: what it
// would answer would pass by them, through the kernel's stack, without policies and in plain text.
func (k *Kernel) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *Endpoint) error {
	if e.Deleting() {
		return k.forget(e)
	}
	if k.Hold != nil && e.State == StateCreating {
		if err := k.Hold(e); err != nil {
			return err
		}
	}
	if err := k.writeNetns(e); err != nil {
		return err
	}
	row := k.row(e)
	linked, err := k.writeLink(e, row)
	if err != nil {
		return err
	}
	if err := k.attach(e); err != nil {
		return err
	}
	addressed, err := k.writeAddresses(e, row)
	if err != nil {
		return err
	}
	if linked || addressed {
		return k.Epochs.Begin(e.ID)
	}
	return nil
}

// attach hangs the programs on the link: at first in the way that takes no time, so that no ADD and no start of the
// agent waits, and when the settler asks for it, in the lasting one.
func (k *Kernel) attach(e *Endpoint) error {
	hooks := []bpf.Hook{bpf.FromPod}
	if k.Follow {
		hooks = []bpf.Hook{bpf.ToPod, bpf.FromPod}
	} else if err := k.Datapath.Attacher.Detach(bpf.ToPod, e.LinkName, e.LinkIndex); err != nil {
		return err
	}
	if e.Kind.IsNetkit() {
		hooks = append(hooks, bpf.FromPodLink) // last, since it relies on FromPod for what passes
	}
	interim := false
	for _, hook := range hooks {
		if e.Interim {
			if err := k.Datapath.Attacher.Attach(hook, e.LinkName, e.LinkIndex); err != nil {
				return err
			}
			continue
		}
		lasting, err := k.Datapath.Attacher.AttachSoon(hook, e.LinkName, e.LinkIndex)
		if err != nil {
			return err
		}
		interim = interim || !lasting
	}
	if e.Kind.IsNetkit() {
		if err := podlink.Open(e.LinkIndex); err != nil {
			return err
		}
	}
	e.Interim = interim
	return nil
}

// writeLink puts the row by which packets from the pod are known, and reports whether it is new or different.
func (k *Kernel) writeLink(e *Endpoint, row bpf.DatapathEndpoint) (changed bool, err error) {
	link := bpf.DatapathPodLink{Addr4: bpf.Addr(e.IPv4), Addr6: bpf.Addr(e.IPv6), NetnsCookie: e.NetnsCookie,
		Endpoint: row}
	var old bpf.DatapathPodLink
	if k.Datapath.PodLinks.Lookup(uint32(e.LinkIndex), &old) == nil && old == link {
		return false, nil
	}
	if err := k.Datapath.PodLinks.Put(uint32(e.LinkIndex), link); err != nil {
		return false, fmt.Errorf("write link row of %s: %w", e.LinkName, err)
	}
	return true, nil
}

// writeAddresses puts the rows by which the pod is reached, and reports whether any of them is new or different.
func (k *Kernel) writeAddresses(e *Endpoint, row bpf.DatapathEndpoint) (changed bool, err error) {
	for _, a := range e.Addresses() {
		var old bpf.DatapathEndpoint
		same := k.Datapath.Endpoints.Lookup(bpf.Addr(a), &old) == nil && old == row
		if err := k.Datapath.MarkOwn(a); err != nil { // also of the same row, which may be older than the filter
			return changed, err
		}
		if same {
			continue
		}
		changed = true
		if err := k.Datapath.Endpoints.Put(bpf.Addr(a), row); err != nil {
			return changed, fmt.Errorf("write endpoint row of %s: %w", a, err)
		}
	}
	return changed, nil
}

// Delete implements reconciler.Operations: the link is gone by now.
func (k *Kernel) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, e *Endpoint) error {
	return errors.Join(
		k.forget(e),
		k.Datapath.Attacher.Detach(bpf.FromPodLink, e.LinkName, e.LinkIndex),
		k.Datapath.Attacher.Detach(bpf.FromPod, e.LinkName, e.LinkIndex),
		k.Datapath.Attacher.Detach(bpf.ToPod, e.LinkName, e.LinkIndex),
	)
}

// forget removes the endpoint's rows. An address that another endpoint has by now is left alone. The programs stay
// on the link until that is deleted: without a row they drop what the pod sends, and to detach them would wait for
// a grace period of RCU.
func (k *Kernel) forget(e *Endpoint) error {
	for _, a := range e.Addresses() {
		if err := k.deleteAddress(a, e.ID); err != nil {
			return err
		}
	}
	var link bpf.DatapathPodLink
	if k.Datapath.PodLinks.Lookup(uint32(e.LinkIndex), &link) == nil && link.Endpoint.Slot == e.ID {
		if err := ignoreMissing(k.Datapath.PodLinks.Delete(uint32(e.LinkIndex))); err != nil {
			return fmt.Errorf("delete link row of %s: %w", e.LinkName, err)
		}
	}
	if err := k.deleteNetns(e.ID); err != nil {
		return err
	}
	if k.Gone != nil {
		k.Gone(e.Addresses())
	}
	return k.Epochs.Forget(e.ID)
}

func (k *Kernel) deleteAddress(a netip.Addr, slot uint16) error {
	var row bpf.DatapathEndpoint
	if k.Datapath.Endpoints.Lookup(bpf.Addr(a), &row) != nil || row.Slot != slot {
		return nil
	}
	if err := ignoreMissing(k.Datapath.Endpoints.Delete(bpf.Addr(a))); err != nil {
		return fmt.Errorf("delete endpoint row of %s: %w", a, err)
	}
	return nil
}

// Prune implements reconciler.Operations: it deletes rows and pins of pods that no endpoint stands for.
func (k *Kernel) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Endpoint, statedb.Revision]) error {
	slots, links, pins := map[uint16]bool{}, map[uint32]bool{}, map[string]bool{}
	for e := range rows {
		slots[e.ID], links[uint32(e.LinkIndex)], pins[e.LinkName] = true, true, true
	}
	return errors.Join(k.pruneAddresses(slots), k.pruneLinks(links), k.pruneNetns(slots), k.prunePins(pins))
}

func (k *Kernel) pruneAddresses(slots map[uint16]bool) error {
	var (
		addr  bpf.DatapathAddr
		row   bpf.DatapathEndpoint
		stale []bpf.DatapathAddr
	)
	all := k.Datapath.Endpoints.Iterate()
	for all.Next(&addr, &row) {
		if row.Flags&uint8(bpf.DatapathEndpointFlagENDPOINT_HOST) == 0 && !slots[row.Slot] {
			stale = append(stale, addr)
		}
	}
	errs := []error{all.Err()}
	for _, a := range stale {
		errs = append(errs, ignoreMissing(k.Datapath.Endpoints.Delete(a)))
	}
	return errors.Join(errs...)
}

func (k *Kernel) pruneLinks(links map[uint32]bool) error {
	var (
		index uint32
		row   bpf.DatapathPodLink
		stale []uint32
	)
	all := k.Datapath.PodLinks.Iterate()
	for all.Next(&index, &row) {
		if !links[index] {
			stale = append(stale, index)
		}
	}
	errs := []error{all.Err()}
	for _, i := range stale {
		errs = append(errs, ignoreMissing(k.Datapath.PodLinks.Delete(i)))
	}
	return errors.Join(errs...)
}

// prunePins removes the pins of programs on pod links that are no longer there; what hangs on wires is not ours.
func (k *Kernel) prunePins(names map[string]bool) error {
	pins, err := k.Datapath.Attacher.Pins()
	for _, pin := range pins {
		device, _ := bpf.SplitPin(pin)
		if IsLinkName(device) && !names[device] {
			err = errors.Join(err, os.Remove(pin))
		}
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
