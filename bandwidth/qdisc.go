package bandwidth

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

// handle is the major number of qdiscs that are Myelin's. The kernel gives numbers from 0x8000 on.
const handle = 0x6d79

// What fq holds: each pod is bounded by its horizon, so that a pod alone fills neither.
const (
	packetLimit     = 262_144
	flowPacketLimit = 4_096
)

// Qdisc is the row of a device whose packets must wait for their departure times.
type Qdisc struct {
	Index  int               `json:"index"`
	Device string            `json:"device"`
	Wire   bool              `json:"wire"`            // otherwise a pod link
	Found  string            `json:"found,omitempty"` // what it has
	Bands  bool              `json:"bands,omitempty"` // which heeds priorities
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same.
func (q *Qdisc) Equal(o *Qdisc) bool {
	return q.Index == o.Index && q.Device == o.Device && q.Wire == o.Wire
}

// TableHeader names the columns of TableRow.
func (*Qdisc) TableHeader() []string { return []string{"Device", "Index", "Qdisc", "Status"} }

// TableRow is the row as text.
func (q *Qdisc) TableRow() []string {
	return []string{q.Device, fmt.Sprint(q.Index), q.Found, q.Status.String()}
}

func qdiscIndex() statedb.Index[*Qdisc, int] {
	return statedb.Index[*Qdisc, int]{
		Name:       "index",
		FromObject: func(q *Qdisc) index.KeySet { return index.NewKeySet(index.Int(q.Index)) },
		FromKey:    index.Int, FromString: index.IntString, Unique: true,
	}
}

func qdiscByIndex(i int) statedb.Query[*Qdisc] {
	x := qdiscIndex()
	return x.Query(i)
}

// fq is the qdisc below a parent.
func fq(device int, id, parent uint32) *netlink.Fq {
	return &netlink.Fq{
		QdiscAttrs:  netlink.QdiscAttrs{LinkIndex: device, Handle: id, Parent: parent},
		PacketLimit: packetLimit, FlowPacketLimit: flowPacketLimit, Pacing: 1,
	}
}

// qdiscOps gives devices fq in place of what the kernel gives them by itself.
type qdiscOps struct{ kernel *route.Kernel }

func major(h uint32) uint32 { return h >> 16 }

// Update gives the device an fq, and reads whether that of a wire has bands.
func (o *qdiscOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, q *Qdisc) error {
	err := o.provide(q)
	if !q.Wire {
		return err
	}
	bands, readErr := o.readBands(q.Index)
	if q.Bands = bands; readErr != nil {
		readErr = fmt.Errorf("read bands of %s: %w", q.Device, readErr)
	}
	return errors.Join(err, readErr)
}

// provide keeps an fq of another program, and refuses to replace another qdisc that was configured.
func (o *qdiscOps) provide(q *Qdisc) error {
	root, leaves, err := o.read(q.Index)
	if err != nil {
		return fmt.Errorf("read qdiscs of %s: %w", q.Device, err)
	}
	kind, owner := "noqueue", uint32(0)
	if root != nil {
		kind, owner = root.Type(), major(root.Attrs().Handle)
	}
	q.Found = kind
	switch {
	case kind == "fq" && owner != 0:
		return nil
	case kind == "mq" && owner != 0 && allFq(leaves):
		q.Found = "mq with fq"
		return nil
	case owner != 0 && owner != handle:
		return fmt.Errorf("%s has qdisc %s, which another program has configured and Myelin does not replace: "+
			"use fq, or mq with fq, or remove it", q.Device, kind)
	}
	if kind == "mq" {
		return o.replaceMq(q)
	}
	if err := o.replace(q, fq(q.Index, netlink.MakeHandle(handle, 0), netlink.HANDLE_ROOT)); err != nil {
		return err
	}
	q.Found = "fq"
	return nil
}

// replaceMq makes an mq whose leaves can be replaced, which those of the kernel's own can't.
func (o *qdiscOps) replaceMq(q *Qdisc) error {
	if root, _, err := o.read(q.Index); err != nil || root == nil || major(root.Attrs().Handle) != handle {
		mq := &netlink.GenericQdisc{QdiscType: "mq", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: q.Index, Handle: netlink.MakeHandle(handle, 0), Parent: netlink.HANDLE_ROOT,
		}}
		if err := o.replace(q, mq); err != nil {
			return err
		}
	}
	_, leaves, err := o.read(q.Index)
	if err != nil {
		return fmt.Errorf("read qdiscs of %s: %w", q.Device, err)
	}
	for _, leaf := range leaves {
		if leaf.Type() == "fq" {
			continue
		}
		if err := o.replace(q, fq(q.Index, 0, leaf.Attrs().Parent)); err != nil {
			return err
		}
	}
	q.Found = "mq with fq"
	return nil
}

func (o *qdiscOps) replace(q *Qdisc, with netlink.Qdisc) error {
	err := o.kernel.QdiscReplace(with)
	if errors.Is(err, unix.ENOENT) && with.Type() == "fq" {
		return fmt.Errorf("give %s the qdisc fq: the kernel has none (CONFIG_NET_SCH_FQ)", q.Device)
	}
	if err != nil {
		return fmt.Errorf("give %s the qdisc %s: %w", q.Device, with.Type(), err)
	}
	return nil
}

// read returns a device's root qdisc, nil: the kernel lists none, and those of the queues of an mq.
func (o *qdiscOps) read(device int) (root netlink.Qdisc, leaves []netlink.Qdisc, err error) {
	list, err := o.list(device)
	for _, q := range list {
		switch parent := q.Attrs().Parent; {
		case parent == netlink.HANDLE_ROOT:
			root = q
		case parent != netlink.HANDLE_INGRESS:
			leaves = append(leaves, q)
		}
	}
	return root, leaves, err
}

// list lists the qdiscs of a device, 0: of all.
func (o *qdiscOps) list(device int) (list []netlink.Qdisc, err error) {
	var link netlink.Link
	if device != 0 {
		link = &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: device}}
	}
	err = complete(func() (err error) {
		list, err = o.kernel.QdiscList(link)
		return err
	})
	return list, err
}

// complete repeats a dump that a change has interrupted.
func complete(dump func() error) (err error) {
	const tries = 10
	for range tries {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return err
}

func allFq(leaves []netlink.Qdisc) bool {
	for _, leaf := range leaves {
		if leaf.Type() != "fq" {
			return false
		}
	}
	return len(leaves) > 0
}

// Delete gives the device back what the kernel gives it by itself.
func (o *qdiscOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, q *Qdisc) error {
	root, _, err := o.read(q.Index)
	if err == nil && root != nil {
		_, err = o.remove(root)
	}
	if err != nil {
		return fmt.Errorf("remove the qdisc of %s: %w", q.Device, err)
	}
	return nil
}

// remove removes a root that is Myelin's.
func (o *qdiscOps) remove(root netlink.Qdisc) (removed bool, err error) {
	if major(root.Attrs().Handle) != handle || root.Attrs().Parent != netlink.HANDLE_ROOT {
		return false, nil
	}
	err = o.kernel.QdiscDel(root)
	for _, gone := range []error{unix.ENODEV, unix.ENOENT, unix.EINVAL} {
		if errors.Is(err, gone) {
			return false, nil // with its device, or replaced meanwhile
		}
	}
	return err == nil, err
}

// Prune does that for devices without a row.
func (o *qdiscOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Qdisc, statedb.Revision]) error {
	want := map[int]bool{}
	for q := range rows {
		want[q.Index] = true
	}
	_, err := o.prune(want)
	return err
}

// prune returns the indexes of the devices.
func (o *qdiscOps) prune(but map[int]bool) (devices []int, err error) {
	list, err := o.list(0)
	errs := []error{err}
	for _, q := range list {
		device := q.Attrs().LinkIndex
		if but[device] {
			continue
		}
		removed, err := o.remove(q)
		if err != nil {
			err = fmt.Errorf("remove the qdisc of device %d: %w", device, err)
		}
		if errs = append(errs, err); removed {
			devices = append(devices, device)
		}
	}
	return devices, errors.Join(errs...)
}

// Remove removes all qdiscs that agents have made, and returns the indexes of their devices.
func Remove(k *route.Kernel) (devices []int, err error) { return (&qdiscOps{k}).prune(nil) }
