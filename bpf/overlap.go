package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// overlap is what the programs of before may still add to tables whose rows were copied to larger or smaller ones: they
// run until others are attached.
type overlap struct {
	since                         uint64 // tick; rows that were created earlier were copied
	flows, natEntries, natReplies *ebpf.Map
}

// keep keeps a map whose rows are to be copied for Overlap. It returns false for maps whose other rows are not missed.
func (o *overlap) keep(name string, m *ebpf.Map) (bool, error) {
	slot := map[string]**ebpf.Map{"flows": &o.flows, "nat_entries": &o.natEntries, "nat_replies": &o.natReplies}[name]
	if slot == nil {
		return false, nil
	}
	if o.since == 0 {
		now, err := Ticks()
		if err != nil {
			return false, err
		}
		o.since = now
	}
	*slot = m
	return true, nil
}

// Overlap copies the flows that packets have added to tables after these were copied. It is called once, after all
// programs have been attached, and returns how many there were.
func (d *Datapath) Overlap() (flows int, err error) {
	o := d.overlap
	d.overlap = overlap{}
	if o.flows != nil {
		err = Each(o.flows, func(k *DatapathFlowKey, f *DatapathFlow) bool {
			if f.Created >= o.since && d.Flows.Update(k, f, ebpf.UpdateNoExist) == nil {
				flows++
			}
			return true
		})
	}
	if o.natEntries != nil && o.natReplies != nil {
		err = errors.Join(err, Each(o.natEntries, func(k *DatapathNatTuple, e *DatapathNatEntry) bool {
			if e.CreatedAt() >= o.since && d.addNatEntry(k, e, o.natReplies) {
				flows++
			}
			return true
		}))
	}
	if err = errors.Join(err, o.close()); err != nil {
		return flows, fmt.Errorf("copy flows that began while tables were copied: %w", err)
	}
	return flows, nil
}

// addNatEntry adds an entry with that of its replies, unless a flow of today has one of them.
func (d *Datapath) addNatEntry(k *DatapathNatTuple, e *DatapathNatEntry, replies *ebpf.Map) bool {
	var today DatapathNatEntry
	if d.NatEntries.Lookup(k, &today) == nil {
		return false
	}
	if hasReply(e) {
		tuple, reply := ReplyTuple(k, e), DatapathNatReply{Request: *k}
		if found, err := Get(replies, tuple, &reply); err != nil || found && reply.Request != *k ||
			d.NatReplies.Update(&tuple, &reply, ebpf.UpdateNoExist) != nil {
			return false
		}
	}
	return d.NatEntries.Update(k, e, ebpf.UpdateNoExist) == nil
}

func (o *overlap) close() error {
	var errs []error
	for _, m := range []*ebpf.Map{o.flows, o.natEntries, o.natReplies} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
