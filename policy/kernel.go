package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// Kernel writes policies to the datapath's maps. What is over stays there for a
// while: a packet may be between two look-ups.
type Kernel struct {
	datapath *bpf.Datapath
	epochs   *bpf.Epochs
	now      func() time.Time
	closed   uint32 // the set that allows nothing, for endpoints whose own isn't there
	due      []due
	policed  map[uint16]struct{} // slots with a row in policies

	before func(op string) error // of a test: called before each write to a map, which its error prevents
}

// due are rows to be deleted, and when.
type due struct {
	at      time.Time
	peers   []bpf.DatapathPeerClassKey
	classes []bpf.DatapathVerdictKey
}

// grace is longer than any packet is on its way through the datapath.
const grace = time.Second

// NewKernel makes a Kernel of loaded maps. now is the clock.
func NewKernel(d *bpf.Datapath, epochs *bpf.Epochs, now func() time.Time) *Kernel {
	return &Kernel{datapath: d, epochs: epochs, now: now, policed: map[uint16]struct{}{}}
}

// nothing are rows that allow nothing.
func nothing() []row { return []row{{ruling: noRule}} }

// adopt reads the largest numbers of sets or classes and of peers that are in
// the maps, so that new ones are unlike all of them, and writes what is always
// there.
func (k *Kernel) adopt() (last, lastPeer uint32, err error) {
	lastPeer = firstDerived - 1
	err1 := bpf.Each(k.datapath.PeerClasses, func(key *bpf.DatapathPeerClassKey, c *bpf.DatapathPeerClass) bool {
		last = max(last, key.Set, c.Class)
		return true
	})
	err2 := bpf.Each(k.datapath.Verdicts, func(key *bpf.DatapathVerdictKey, _ *bpf.DatapathVerdict) bool {
		last = max(last, key.Class)
		return true
	})
	derived := func(id uint32) {
		if id >= firstDerived {
			lastPeer = max(lastPeer, id)
		}
	}
	err3 := bpf.Each(k.datapath.Peers, func(_ *bpf.DatapathAddr, id *uint32) bool { derived(*id); return true })
	err4 := bpf.Each(k.datapath.PeerPrefixes, func(_ *bpf.DatapathPrefixKey, id *uint32) bool { derived(*id); return true })
	err5 := bpf.Each(k.datapath.Policies, func(slot *uint32, _ *bpf.DatapathEndpointPolicy) bool {
		k.policed[uint16(*slot)] = struct{}{}
		return true
	})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return 0, 0, fmt.Errorf("read what policies the kernel has: %w", err)
	}
	k.closed = last + 1
	// Numbers begin anew where maps did: who two ends are to each other is asked again.
	return k.closed, lastPeer, errors.Join(k.putRows(k.closed, nothing()), k.epochs.Move())
}

// room is how many single addresses, and how many prefixes, the maps hold.
func (k *Kernel) room() (addresses, prefixes int) {
	return int(k.datapath.Peers.MaxEntries()), int(k.datapath.PeerPrefixes.MaxEntries())
}

// apply makes the kernel what a plan says. What can't be is noted in the
// compiler, whose next plan has it again; the error says so.
func (k *Kernel) apply(c *compiler, p *plan) error {
	var errs []error
	for _, s := range p.sets {
		err := k.putSet(s)
		var full *fullError
		if errors.As(err, &full) && len(k.due) > 0 {
			_, err = k.sweep(true)
			err = errors.Join(err, k.putSet(s))
		}
		if err != nil {
			errs = append(errs, err)
			c.fail(s, err, p)
		}
	}
	for _, a := range p.additions {
		if a.set.number == 0 {
			continue // it failed
		}
		if err := k.putAddition(a); err != nil {
			errs = append(errs, err)
			c.fail(a.set, err, p)
		}
	}
	errs = append(errs, k.putAddresses(c, p.changes))
	switch {
	case p.bump:
		errs = append(errs, k.epochs.Bump(0))
	case len(p.additions)+len(p.changes) > 0:
		errs = append(errs, k.epochs.Move())
	}
	for t := range p.targets {
		if err := k.putTarget(c, t); err != nil {
			errs = append(errs, err)
			c.retry(t)
		}
	}
	k.retire(p)
	return errors.Join(errs...)
}

// putSet writes a set that nobody uses yet.
func (k *Kernel) putSet(s *set) error {
	classes := make(map[uint32]bool, len(s.byRows))
	var keys []bpf.DatapathVerdictKey
	var values []bpf.DatapathVerdict
	for _, c := range s.byRows {
		if !classes[c.number] {
			classes[c.number] = true
			keys, values = verdictRows(keys, values, c.number, c.rows)
		}
	}
	peerKeys := make([]bpf.DatapathPeerClassKey, 0, len(s.peers))
	peers := make([]bpf.DatapathPeerClass, 0, len(s.peers))
	for d, c := range s.peers {
		peerKeys = append(peerKeys, bpf.DatapathPeerClassKey{Set: s.number, Identity: d.number})
		peers = append(peers, bpf.DatapathPeerClass{Class: c.number, Lengths: c.lengths})
	}
	if err := putAll(k, "verdicts", k.datapath.Verdicts, keys, values); err != nil {
		return err
	}
	return putAll(k, "peer_classes", k.datapath.PeerClasses, peerKeys, peers)
}

func verdictRows(keys []bpf.DatapathVerdictKey, values []bpf.DatapathVerdict, class uint32, rows []row) ([]bpf.DatapathVerdictKey, []bpf.DatapathVerdict) {
	for _, r := range rows {
		keys = append(keys, verdictKey(class, r.portPrefix))
		values = append(values, bpf.DatapathVerdict{Rule: r.rule, Action: uint8(r.ruling)})
	}
	return keys, values
}

func verdictKey(class uint32, p portPrefix) bpf.DatapathVerdictKey {
	return bpf.DatapathVerdictKey{Class: class, Port: p.port, Proto: p.proto, Bits: p.bits}
}

func (k *Kernel) putRows(class uint32, rows []row) error {
	keys, values := verdictRows(nil, nil, class, rows)
	return putAll(k, "verdicts", k.datapath.Verdicts, keys, values)
}

// putAddition gives a peer its class in a set that is in use: the class first.
func (k *Kernel) putAddition(a addition) error {
	if a.fresh {
		if err := k.putRows(a.class.number, a.class.rows); err != nil {
			return err
		}
	}
	key := bpf.DatapathPeerClassKey{Set: a.set.number, Identity: a.peer}
	return putAll(k, "peer_classes", k.datapath.PeerClasses, []bpf.DatapathPeerClassKey{key}, []bpf.DatapathPeerClass{{Class: a.class.number, Lengths: a.class.lengths}})
}

// putTarget lets an endpoint have its sets, all at once. Flows that were
// decided before are decided again.
func (k *Kernel) putTarget(c *compiler, t *target) error {
	if t.gone && c.target(t.slot) != nil {
		return nil // somebody else has the slot by now
	}
	want, some := k.targetRow(c, t)
	var have bpf.DatapathEndpointPolicy
	key := uint32(t.slot)
	found, err := lookupRow(k.datapath.Policies, key, &have)
	switch {
	case err != nil:
		return fmt.Errorf("read policy of endpoint %d: %w", t.slot, err)
	case found && some && have == want || !found && !some:
		return nil
	case some:
		if err := k.track(t.slot, true); err != nil {
			return err
		}
		err = putAll(k, "policies", k.datapath.Policies, []uint32{key}, []bpf.DatapathEndpointPolicy{want})
	default:
		err = deleteAll(k, "policies", k.datapath.Policies, []uint32{key})
	}
	if err != nil {
		return err
	}
	if err := k.epochs.Bump(t.slot); err != nil || some {
		return err
	}
	return k.track(t.slot, false)
}

// hold denies an endpoint everything until it has its sets.
func (k *Kernel) hold(slot uint16) error {
	if err := k.track(slot, true); err != nil {
		return err
	}
	return putAll(k, "policies", k.datapath.Policies, []uint32{uint32(slot)}, []bpf.DatapathEndpointPolicy{k.closedRow()})
}

// closedRow is that of an endpoint that may talk to nobody.
func (k *Kernel) closedRow() (row bpf.DatapathEndpointPolicy) {
	for dir := range row.Set {
		for family := range row.Set[dir] {
			row.Set[dir][family], row.Lengths[dir][family] = k.closed, lengthsOf(nothing())
		}
	}
	return row
}

// track lets the datapath look for flows at hand while some endpoint has
// policies.
func (k *Kernel) track(slot uint16, on bool) error {
	had := len(k.policed) > 0
	if on {
		k.policed[slot] = struct{}{}
	} else {
		delete(k.policed, slot)
	}
	if has := len(k.policed) > 0; has != had {
		return k.datapath.Track(has)
	}
	return nil
}

// targetRow is the row of an endpoint, and whether it has one. Where a set
// isn't in the kernel, everything is allowed, or nothing; of an endpoint that
// waits for its first ones, nothing is.
func (k *Kernel) targetRow(c *compiler, t *target) (row bpf.DatapathEndpointPolicy, some bool) {
	if t.fresh {
		return k.closedRow(), true
	}
	row.Audit = uint8(boolIndex(t.audit || c.config.Audit))
	for dir, of := range t.sets {
		for family, s := range of {
			switch {
			case s == nil:
			case s.number != 0:
				row.Set[dir][family], row.Lengths[dir][family] = s.number, s.rest.lengths
			case !c.config.Open:
				row.Set[dir][family], row.Lengths[dir][family] = k.closed, lengthsOf(nothing())
			}
			some = some || row.Set[dir][family] != 0
		}
	}
	return row, some
}

func lookupRow[K, V any](m *ebpf.Map, key K, value *V) (bool, error) {
	err := m.Lookup(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// batchSize is how many rows one system call writes.
const batchSize = 4096

// putAll writes rows, in batches where the kernel can (5.6 for hashes, 5.13
// for tries).
func putAll[K, V any](k *Kernel, name string, m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	if k.before != nil {
		if err := k.before("put " + name); err != nil {
			return err
		}
	}
	for from := 0; from < len(keys); from += batchSize {
		to := min(from+batchSize, len(keys))
		done := from
		if to-from > 1 {
			n, err := m.BatchUpdate(keys[from:to], values[from:to], nil)
			if err == nil {
				continue
			}
			if errors.Is(err, unix.E2BIG) {
				done += n
			}
		}
		for ; done < to; done++ {
			err := m.Put(&keys[done], &values[done])
			if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
				return &fullError{name, m.MaxEntries(), len(keys) - done, done}
			}
			if err != nil {
				return fmt.Errorf("write map %s: %w", name, err)
			}
		}
	}
	return nil
}

// fullError says that a map has no room. done are the rows that were written.
type fullError struct {
	name       string
	size       uint32
	left, done int
}

func (e *fullError) Error() string {
	return fmt.Sprintf("map %s is full: it has room for %d rows, and %d more are needed", e.name, e.size, e.left)
}

// deleteAll deletes rows that are there.
func deleteAll[K any](k *Kernel, name string, m *ebpf.Map, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	if k.before != nil {
		if err := k.before("delete " + name); err != nil {
			return err
		}
	}
	for from := 0; from < len(keys); from += batchSize {
		to := min(from+batchSize, len(keys))
		if to-from > 1 {
			if _, err := m.BatchDelete(keys[from:to], nil); err == nil {
				continue
			}
		}
		for i := from; i < to; i++ {
			if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("delete from map %s: %w", name, err)
			}
		}
	}
	return nil
}
