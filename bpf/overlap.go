package bpf

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// overlap is what the programs of before may still add to tables whose rows were copied to larger or smaller ones: they
// run until others are attached.
type overlap struct {
	since                         uint64 // tick; rows that were created earlier were copied
	flows, natEntries, natReplies *ebpf.Map
}

// copyTime is for how many seconds after the copy segments are dropped whose entry is missing, at most: the agent may
// die before TakeOver.
const copyTime = 30

// keep keeps a map whose rows are to be copied by TakeOver. It returns false for maps whose other rows are not missed.
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

// TakeOver replaces the programs of before, if tables were copied to larger or smaller ones, and copies the flows that
// packets have added to tables since then. It is called once, when the agent has attached its programs to all devices,
// and returns how many flows there were. Flows that begin while programs are replaced, which takes some milliseconds,
// are copied a moment later.
func (d *Datapath) TakeOver() (flows int, err error) {
	o := &d.overlap
	defer func() { *o = overlap{} }()
	copied := o.since != 0
	flows, err = d.copyNewFlows()
	ahead(func() { err = errors.Join(err, d.Attacher.replacements.run()) })
	n, failed := d.copyNewFlows()
	if copied {
		failed = errors.Join(failed, d.EntriesCopiedUntil.Set(uint32(0)))
	}
	if err = errors.Join(err, failed, o.close()); err != nil {
		return flows + n, fmt.Errorf("take over flows that began while tables were copied: %w", err)
	}
	return flows + n, nil
}

// ahead runs f before other work of the CPU, if the process has the capability (CAP_SYS_NICE): while only some programs
// have been replaced, the first packets of new flows may be lost, which are sent again a second later.
func ahead(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	usual, err := unix.SchedGetAttr(0, 0)
	if err != nil || unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR,
		Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1}, 0) != nil {
		f()
		return
	}
	defer unix.SchedSetAttr(0, usual, 0)
	f()
}

// copyNewFlows copies the flows that packets have added to tables after these were copied last.
func (d *Datapath) copyNewFlows() (flows int, err error) {
	o := &d.overlap
	since := o.since
	if o.flows == nil && o.natEntries == nil {
		return 0, nil
	}
	if o.since, err = Ticks(); err != nil {
		return 0, err
	}
	if o.flows != nil {
		err = Each(o.flows, func(k *DatapathFlowKey, f *DatapathFlow) bool {
			if f.Created >= since && d.addFlow(k, f) {
				flows++
			}
			return true
		})
	}
	if o.natEntries != nil && o.natReplies != nil {
		err = errors.Join(err, Each(o.natEntries, func(k *DatapathNatTuple, e *DatapathNatEntry) bool {
			if e.CreatedAt() >= since && d.addNatEntry(k, e, o.natReplies) {
				flows++
			}
			return true
		}))
	}
	return flows, err
}

// addFlow adds an entry, unless packets have added one with its key to the table of today. One that was copied and is
// older is of a closed connection, whose ports are used again.
func (d *Datapath) addFlow(k *DatapathFlowKey, f *DatapathFlow) bool {
	err := d.Flows.Update(k, f, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		var today DatapathFlow
		if d.Flows.Lookup(k, &today) != nil || today.Created >= f.Created {
			return false
		}
		err = d.Flows.Update(k, f, ebpf.UpdateAny)
	}
	if err != nil {
		return false
	}
	d.indexPort(k, f)
	return true
}

// indexPort adds the port of a masqueraded flow to the index, unless it is the first candidate. Without it, packets
// would look among the candidates again, and could claim one that is free by now.
func (d *Datapath) indexPort(k *DatapathFlowKey, f *DatapathFlow) {
	if DatapathFlowFlag(f.Flags)&DatapathFlowFlagFLOW_INDEXED == 0 {
		return
	}
	key, row := masqueradePort(k, f)
	var today DatapathPortIndex
	if d.PortIndexes.Lookup(key, &today) == nil {
		if used, err := d.PortIndexed(&key, &today); used || err != nil {
			return
		}
	}
	_ = d.PortIndexes.Update(key, row, ebpf.UpdateAny) // it fails if the index is full
}

// addNatEntry adds an entry with that of its replies, unless packets have added one with either key to the tables of
// today. One that was copied and is older is of a closed connection, as in addFlow.
func (d *Datapath) addNatEntry(k *DatapathNatTuple, e *DatapathNatEntry, replies *ebpf.Map) bool {
	var today DatapathNatEntry
	if d.NatEntries.Lookup(k, &today) == nil {
		if today.CreatedAt() >= e.CreatedAt() || d.NatEntries.Delete(k) != nil || d.DeleteNatReply(k, &today) != nil {
			return false
		}
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
