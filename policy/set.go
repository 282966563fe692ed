package policy

import (
	"encoding/binary"
	"maps"
	"slices"

	"myelin/bpf"
)

// class is a list of rows that some peers of a set have.
type class struct {
	number  uint32
	rows    []row
	lengths uint32
	peers   int // how many have it
}

// set is what an endpoint's policies say of one direction, and of a family or
// of both.
type set struct {
	number  uint32
	key     string
	dir     Direction
	family  int // of rules that mean everybody of a family
	entries []entry
	place   map[*rule]uint32 // in entries
	hostAt  int
	hosts   *peerSelection // who hostAt is for
	// anyone are the places of entries that everybody is matched by.
	anyone []uint32
	named  bool // some port's number is the peer's to say

	byRows  map[string]*class
	byMatch map[string]*class
	peers   map[*peerID]*class // those that don't have the class of everybody else
	rest    *class             // everybody else's; it has the set's number

	users int
	err   error // why it isn't in the kernel
}

// ruleCount is how many rules the set has.
func (s *set) ruleCount() int { return len(s.place) }

// lengthsOf says which lengths of ports there are, and what protocols there are no rows of, as the datapath wants it.
func lengthsOf(rows []row) uint32 {
	var lengths, present uint32
	for _, r := range rows {
		if r.proto == ProtoAny {
			lengths |= 1 << 17
		} else {
			lengths |= 1 << r.bits
			present |= absent(r.proto)
		}
	}
	return lengths | (absent(ProtoTCP)|absent(ProtoUDP)|absent(ProtoSCTP))&^present
}

// absent is the bit that says that there are no rows of a protocol: policy_absent of the datapath.
func absent(proto uint8) uint32 {
	switch proto {
	case ProtoTCP:
		return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_TCP)
	case ProtoUDP:
		return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_UDP)
	}
	return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_OTHER)
}

// build fills a set: it looks at everybody that its rules name.
func (s *set) build(next func() uint32) {
	s.byRows, s.byMatch, s.peers = map[string]*class{}, map[string]*class{}, map[*peerID]*class{}
	s.number = next()
	s.rest = s.classOf(nil, nil, func() uint32 { return s.number })
	matched := map[*peerID][]uint32{}
	match := func(d *peerID, at uint32) {
		list, ok := matched[d]
		if !ok {
			list = make([]uint32, 0, 8)
		}
		if len(list) == 0 || list[len(list)-1] != at {
			matched[d] = append(list, at)
		}
	}
	for i, e := range s.entries {
		if slices.Contains(s.anyone, uint32(i)) {
			continue
		}
		s.whom(e.rule, i, func(d *peerID) { match(d, uint32(i)) })
	}
	if s.named { // … also of entries for everybody
		for d := range s.bound() {
			if _, ok := matched[d]; !ok {
				matched[d] = nil
			}
		}
	}
	for d, list := range matched {
		s.put(d, list, next)
	}
}

// whom calls f with all peers that an entry matches, some more than once.
func (s *set) whom(r *rule, at int, f func(*peerID)) {
	if r == nil {
		if at == s.hostAt {
			eachPeer(s.hosts, f)
		}
		return
	}
	for _, sel := range r.selections {
		eachPeer(sel, f)
	}
	for _, a := range r.addresses {
		for d := range a.set.ids {
			if a.selects(d.base) {
				f(d)
			}
		}
	}
}

func eachPeer(sel *peerSelection, f func(*peerID)) {
	for t := range sel.things {
		for _, d := range t.thing.ids {
			f(d)
		}
	}
}

func (a addressPeer) selects(b *base) bool {
	if a.required == nil {
		return true
	}
	_, ok := a.required.things[&b.labeled]
	return ok
}

// bound are the peers that say which numbers the names of ports have.
func (s *set) bound() map[*peerID]struct{} {
	out := map[*peerID]struct{}{}
	for r := range s.place {
		for _, n := range r.named {
			for _, numbers := range n.sets {
				maps.Copy(out, numbers.ids)
			}
		}
	}
	return out
}

// put gives a peer its class, and reports whether it needs a row for it.
func (s *set) put(d *peerID, matched []uint32, next func() uint32) (c *class, fresh bool) {
	before := len(s.byRows)
	c = s.classOf(d, matched, next)
	if c == s.rest {
		return nil, false
	}
	s.peers[d] = c
	c.peers++
	return c, len(s.byRows) > before
}

// classOf is the class of a peer that these entries match beside those for
// everybody; they are sorted. next numbers a new one.
func (s *set) classOf(d *peerID, matched []uint32, next func() uint32) *class {
	var buffer [128]byte
	key := buffer[:0]
	for _, at := range matched {
		key = binary.LittleEndian.AppendUint32(key, at)
	}
	ports := func(e *entry) []portPrefix { return e.ports }
	if s.named && d != nil {
		binding := d.bindings()
		for _, b := range binding {
			key = binary.LittleEndian.AppendUint32(append(key, 'p'), b.id)
		}
		ports = func(e *entry) []portPrefix { return e.resolved(binding) }
	}
	if c := s.byMatch[string(key)]; c != nil {
		return c
	}
	all := union(s.anyone, matched)
	list := make([]*entry, len(all))
	for i, at := range all {
		list[i] = &s.entries[at]
	}
	rows := flatten(list, ports)
	text := rowsKey(rows)
	c := s.byRows[text]
	if c == nil {
		c = &class{number: next(), rows: rows, lengths: lengthsOf(rows)}
		s.byRows[text] = c
	}
	s.byMatch[string(key)] = c
	return c
}

// drop forgets a peer that is no more, and reports whether it had a row, and
// the class that nobody has any longer.
func (s *set) drop(d *peerID) (had bool, last *class) {
	c := s.peers[d]
	if c == nil {
		return false, nil
	}
	delete(s.peers, d)
	if c.peers--; c.peers > 0 {
		return true, nil
	}
	delete(s.byRows, rowsKey(c.rows))
	maps.DeleteFunc(s.byMatch, func(_ string, other *class) bool { return other == c })
	return true, c
}

// union merges two sorted lists.
func union(a, b []uint32) []uint32 {
	if len(b) == 0 {
		return a
	}
	out := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] < b[0]:
			out, a = append(out, a[0]), a[1:]
		case a[0] > b[0]:
			out, b = append(out, b[0]), b[1:]
		default:
			out, a, b = append(out, a[0]), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}
