// Package maps writes compiled policies to the datapath's maps.
package maps

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/policy/compile"
)

// Writer writes policies to the datapath's maps. What is over stays there for a
// while: a packet may be between two look-ups.
type Writer struct {
	Datapath     *bpf.Datapath
	Epochs       *bpf.Epochs
	Now          func() time.Time
	denyAll      uint32 // the set that allows nothing, for endpoints whose own is not in the kernel
	obsolete     []obsolete
	withPolicies map[uint16]struct{} // slots with a row in policies

	beforeWrite func(op string) error // of a test: called before each write to a map, which its error prevents
}

// obsolete are rows to be deleted, and when.
type obsolete struct {
	at      time.Time
	peers   []bpf.DatapathPeerClassKey
	classes []bpf.DatapathVerdictKey
}

// grace is longer than any packet is on its way through the datapath.
const grace = time.Second

// New makes a Kernel of loaded maps. now is the clock.
func New(d *bpf.Datapath, epochs *bpf.Epochs, now func() time.Time) *Writer {
	return &Writer{Datapath: d, Epochs: epochs, Now: now, withPolicies: map[uint16]struct{}{}}
}

// denyAllVerdicts are rows that allow nothing.
func denyAllVerdicts() []compile.PortVerdict { return []compile.PortVerdict{{Verdict: compile.NoRule}} }

// Adopt reads the largest numbers of sets or classes and of peers that are in
// the maps, so that new ones are unlike all of them, and writes what is always
// there.
func (k *Writer) Adopt() (last, lastPeer uint32, err error) {
	lastPeer = compile.FirstDerived - 1
	err1 := bpf.Each(k.Datapath.PeerClasses, func(key *bpf.DatapathPeerClassKey, c *bpf.DatapathPeerClass) bool {
		last = max(last, key.Set, c.Class)
		return true
	})
	err2 := bpf.Each(k.Datapath.Verdicts, func(key *bpf.DatapathVerdictKey, _ *bpf.DatapathVerdict) bool {
		last = max(last, key.Class)
		return true
	})
	derived := func(id uint32) {
		if id >= compile.FirstDerived {
			lastPeer = max(lastPeer, compile.Plain(id))
		}
	}
	err3 := bpf.Each(k.Datapath.Peers, func(_ *bpf.DatapathAddr, id *uint32) bool { derived(*id); return true })
	err4 := bpf.Each(k.Datapath.PeerPrefixes, func(_ *bpf.DatapathPrefixKey,
		id *uint32) bool {
		derived(*id)
		return true
	})
	err5 := bpf.Each(k.Datapath.Policies, func(slot *uint32, _ *bpf.DatapathEndpointPolicy) bool {
		k.withPolicies[uint16(*slot)] = struct{}{}
		return true
	})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return 0, 0, fmt.Errorf("read what policies the kernel has: %w", err)
	}
	k.denyAll = last + 1
	// Numbers begin anew with empty maps: cached classes must be looked up again.
	return k.denyAll, lastPeer, errors.Join(k.putRows(k.denyAll, denyAllVerdicts()), k.Epochs.Move())
}

// Room is how many single addresses, and how many prefixes, the maps hold when they have grown.
func (k *Writer) Room() (addresses, prefixes int) {
	return k.Datapath.Room("peers"), k.Datapath.Room("peer_prefixes")
}

// Apply makes the kernel what a plan says. What can't be is noted in the
// compiler, whose next plan has it again; the error says so.
func (k *Writer) Apply(c *compile.Compiler, p *compile.Plan) error {
	var errs []error
	for _, s := range p.NewSets {
		err := k.putSet(s)
		var full *fullError
		if errors.As(err, &full) && len(k.obsolete) > 0 {
			_, err = k.Sweep(true)
			err = errors.Join(err, k.putSet(s))
		}
		if err != nil {
			errs = append(errs, err)
			c.FailSet(s, err, p)
		}
	}
	for _, a := range p.Additions {
		if a.Set.Number == 0 {
			continue // it failed
		}
		if err := k.putAddition(a); err != nil {
			errs = append(errs, err)
			c.FailSet(a.Set, err, p)
		}
	}
	errs = append(errs, k.putAddresses(c, p.Addresses))
	switch {
	case p.Moved:
		errs = append(errs, k.Epochs.Bump(0))
	case len(p.Additions)+len(p.Addresses) > 0:
		errs = append(errs, k.Epochs.Move())
	}
	for t := range p.Endpoints {
		if err := k.putEndpoint(c, t); err != nil {
			errs = append(errs, err)
			c.RetryEndpoint(t)
		}
	}
	k.retire(p)
	return errors.Join(errs...)
}

// putSet writes a set that is not in use yet.
func (k *Writer) putSet(s *compile.Set) error {
	classes := map[uint32]bool{}
	var keys []bpf.DatapathVerdictKey
	var values []bpf.DatapathVerdict
	for c := range s.Classes() {
		if !classes[c.Number] {
			classes[c.Number] = true
			keys, values = verdictRows(keys, values, c.Number, c.Verdicts)
		}
	}
	peerKeys := make([]bpf.DatapathPeerClassKey, 0, len(s.Peers))
	peers := make([]bpf.DatapathPeerClass, 0, len(s.Peers))
	for d, c := range s.Peers {
		peerKeys = append(peerKeys, bpf.DatapathPeerClassKey{Set: s.Number, Identity: d.Number})
		peers = append(peers, bpf.DatapathPeerClass{Class: c.Number, Lengths: c.Lengths})
	}
	if err := Put(k, "verdicts", k.Datapath.Verdicts, keys, values); err != nil {
		return err
	}
	return Put(k, "peer_classes", k.Datapath.PeerClasses, peerKeys, peers)
}

func verdictRows(keys []bpf.DatapathVerdictKey, values []bpf.DatapathVerdict, class uint32,
	rows []compile.PortVerdict) ([]bpf.DatapathVerdictKey, []bpf.DatapathVerdict) {
	for _, r := range rows {
		keys = append(keys, verdictKey(class, r.PortPrefix))
		v := bpf.DatapathVerdict{Rule: r.Rule, Action: uint8(r.Verdict)}
		if r.Proxy {
			v.Proxy = 1
		}
		values = append(values, v)
	}
	return keys, values
}

func verdictKey(class uint32, p compile.PortPrefix) bpf.DatapathVerdictKey {
	return bpf.DatapathVerdictKey{Class: class, Port: p.Port, Proto: p.Proto, Bits: p.Bits}
}

func (k *Writer) putRows(class uint32, rows []compile.PortVerdict) error {
	keys, values := verdictRows(nil, nil, class, rows)
	return Put(k, "verdicts", k.Datapath.Verdicts, keys, values)
}

// putAddition gives a peer its class in a set that is in use: the class first.
func (k *Writer) putAddition(a compile.Addition) error {
	if a.Fresh {
		if err := k.putRows(a.Class.Number, a.Class.Verdicts); err != nil {
			return err
		}
	}
	key := bpf.DatapathPeerClassKey{Set: a.Set.Number, Identity: a.Peer}
	return Put(k, "peer_classes", k.Datapath.PeerClasses, []bpf.DatapathPeerClassKey{key},
		[]bpf.DatapathPeerClass{{Class: a.Class.Number, Lengths: a.Class.Lengths}})
}

// putEndpoint lets an endpoint have its sets, all at once. Flows that were
// decided before are decided again.
func (k *Writer) putEndpoint(c *compile.Compiler, t *compile.Endpoint) error {
	if t.Gone && c.Endpoint(t.Slot) != nil {
		return nil // another endpoint has the slot by now
	}
	want, some := k.endpointRow(c, t)
	var have bpf.DatapathEndpointPolicy
	key := uint32(t.Slot)
	found, err := lookupRow(k.Datapath.Policies, key, &have)
	switch {
	case err != nil:
		return fmt.Errorf("read policy of endpoint %d: %w", t.Slot, err)
	case found && some && have == want || !found && !some:
		return nil
	case some:
		if err := k.track(t.Slot, true); err != nil {
			return err
		}
		err = Put(k, "policies", k.Datapath.Policies, []uint32{key}, []bpf.DatapathEndpointPolicy{want})
	default:
		err = Delete(k, "policies", k.Datapath.Policies, []uint32{key})
	}
	if err != nil {
		return err
	}
	if err := k.Epochs.Bump(t.Slot); err != nil || some {
		return err
	}
	return k.track(t.Slot, false)
}

// DenyAll denies an endpoint everything until it has its sets.
func (k *Writer) DenyAll(slot uint16) error {
	if err := k.track(slot, true); err != nil {
		return err
	}
	return Put(k, "policies", k.Datapath.Policies, []uint32{uint32(slot)}, []bpf.DatapathEndpointPolicy{k.denyAllRow()})
}

// denyAllRow is the entry of an endpoint that is denied everything.
func (k *Writer) denyAllRow() (row bpf.DatapathEndpointPolicy) {
	for dir := range row.Set {
		for family := range row.Set[dir] {
			row.Set[dir][family], row.Lengths[dir][family] = k.denyAll, compile.Lengths(denyAllVerdicts())
		}
	}
	return row
}

// track enables the per-CPU flow cache's lookups while some endpoint has
// policies.
func (k *Writer) track(slot uint16, on bool) error {
	had := len(k.withPolicies) > 0
	if on {
		k.withPolicies[slot] = struct{}{}
	} else {
		delete(k.withPolicies, slot)
	}
	if has := len(k.withPolicies) > 0; has != had {
		return k.Datapath.Track(has)
	}
	return nil
}

// endpointRow is the row of an endpoint, and whether it has one. Where a set
// isn't in the kernel, everything is allowed, or nothing; of an endpoint that
// waits for its first ones, nothing is.
func (k *Writer) endpointRow(c *compile.Compiler, t *compile.Endpoint) (row bpf.DatapathEndpointPolicy, some bool) {
	if t.New {
		return k.denyAllRow(), true
	}
	if t.Audit || c.Config.Audit {
		row.Audit = 1
	}
	if t.PassesProxy() {
		row.L7 |= uint8(bpf.DatapathPolicyL7POLICY_L7)
	}
	if t.WatchesDNS() {
		row.L7 |= uint8(bpf.DatapathPolicyL7POLICY_L7 | bpf.DatapathPolicyL7POLICY_NAMES)
	}
	for dir, of := range t.Sets {
		for family, s := range of {
			switch {
			case s == nil:
			case s.Number != 0:
				row.Set[dir][family], row.Lengths[dir][family] = s.Number, s.Default.Lengths
			case !c.Config.Open:
				row.Set[dir][family], row.Lengths[dir][family] = k.denyAll, compile.Lengths(denyAllVerdicts())
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

// Put writes rows, in batches where the kernel can (5.6 for hashes, 5.13
// for tries).
func Put[K, V any](k *Writer, name string, m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	if k.beforeWrite != nil {
		if err := k.beforeWrite("put " + name); err != nil {
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
				k.Datapath.Refused(name, len(keys)-done)
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

// Delete deletes rows that are there.
func Delete[K any](k *Writer, name string, m *ebpf.Map, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	if k.beforeWrite != nil {
		if err := k.beforeWrite("delete " + name); err != nil {
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
