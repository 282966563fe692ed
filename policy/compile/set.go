package compile

import (
	"encoding/binary"
	"maps"
	"slices"

	"myelin/bpf"
	"myelin/policy"
)

// Class is a list of rows that some peers of a set have.
type Class struct {
	Number   uint32
	Verdicts []PortVerdict
	Lengths  uint32
	peers    int // how many have it
}

// Set is what an endpoint's policies say of one direction, and of a family or
// of both.
type Set struct {
	Number  uint32
	key     string
	Dir     policy.Direction
	family  int // of rules that match all peers of a family
	entries []entry
	places  map[*rule]uint32 // in entries
	hostAt  int
	hosts   *peerSelection // the peers of the entry at hostAt
	// wildcards are the places of entries that match all peers.
	wildcards     []uint32
	usesPortNames bool // some port's number is the peer's to say
	// watchesDNS: some rule names peers by DNS names, or has rules for DNS.
	watchesDNS bool

	byVerdicts map[string]*Class
	byMatch    map[string]*Class
	Peers      map[*Identity]*Class // those that do not have the default class
	Default    *Class               // of all other peers; it has the set's number

	users int
	Err   error // why it isn't in the kernel
}

// RuleCount is how many rules the set has.
func (s *Set) RuleCount() int { return len(s.places) }

// Lengths says which lengths of ports there are, and what protocols there are no rows of, as the datapath wants it.
func Lengths(rows []PortVerdict) uint32 {
	var lengths, present uint32
	for _, r := range rows {
		if r.Proto == policy.ProtoAny {
			lengths |= 1 << 17
		} else {
			lengths |= 1 << r.Bits
			present |= ProtocolAbsent(r.Proto)
		}
	}
	return lengths | (ProtocolAbsent(policy.ProtoTCP)|ProtocolAbsent(policy.ProtoUDP)|ProtocolAbsent(
		policy.ProtoSCTP))&^present
}

// ProtocolAbsent is the bit that says that there are no rows of a protocol: policy_absent of the datapath.
func ProtocolAbsent(proto uint8) uint32 {
	switch proto {
	case policy.ProtoTCP:
		return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_TCP)
	case policy.ProtoUDP:
		return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_UDP)
	}
	return uint32(bpf.DatapathPolicyAbsentPOLICY_NO_OTHER)
}

// build fills a set: it looks at all peers that its rules match.
func (s *Set) build(c *Compiler) {
	s.byVerdicts, s.byMatch, s.Peers = map[string]*Class{}, map[string]*Class{}, map[*Identity]*Class{}
	s.Number = c.next()
	s.Default = s.classOf(nil, nil, c, func() uint32 { return s.Number })
	matched := map[*Identity][]uint32{}
	match := func(d *Identity, at uint32) {
		list, ok := matched[d]
		if !ok {
			list = make([]uint32, 0, 8)
		}
		if len(list) == 0 || list[len(list)-1] != at {
			matched[d] = append(list, at)
		}
	}
	for i, e := range s.entries {
		if slices.Contains(s.wildcards, uint32(i)) {
			continue
		}
		s.eachPeer(e.rule, i, func(d *Identity) { match(d, uint32(i)) })
	}
	if s.usesPortNames { // entries for all peers may have port names
		for d := range s.peersWithPorts() {
			if _, ok := matched[d]; !ok {
				matched[d] = nil
			}
		}
	}
	for d, list := range matched {
		s.put(d, list, c)
	}
}

// eachPeer calls f with all peers that an entry matches, some more than once.
func (s *Set) eachPeer(r *rule, at int, f func(*Identity)) {
	if r == nil {
		if at == s.hostAt {
			eachSelected(s.hosts, f)
		}
		return
	}
	for _, sel := range r.selections {
		eachSelected(sel, f)
	}
	for _, a := range r.addresses {
		for d := range a.set.ids {
			if a.selects(d.base) {
				f(d)
			}
		}
	}
}

func eachSelected(sel *peerSelection, f func(*Identity)) {
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

// peersWithPorts are the peers that say which numbers the names of ports have.
func (s *Set) peersWithPorts() map[*Identity]struct{} {
	out := map[*Identity]struct{}{}
	for r := range s.places {
		for _, n := range r.named {
			for _, numbers := range n.sets {
				maps.Copy(out, numbers.ids)
			}
		}
	}
	return out
}

// put gives a peer its class, and reports whether it needs a row for it.
func (s *Set) put(d *Identity, matched []uint32, c *Compiler) (class *Class, fresh bool) {
	before := len(s.byVerdicts)
	class = s.classOf(d, matched, c, c.next)
	if class == s.Default {
		return nil, false
	}
	s.Peers[d] = class
	class.peers++
	return class, len(s.byVerdicts) > before
}

// classOf is the class of a peer that these entries match besides those for
// all peers; they are sorted. next numbers a new one.
func (s *Set) classOf(d *Identity, matched []uint32, c *Compiler, next func() uint32) *Class {
	var buffer [128]byte
	key := buffer[:0]
	for _, at := range matched {
		key = binary.LittleEndian.AppendUint32(key, at)
	}
	ports := func(e *entry) []PortPrefix { return e.ports }
	if s.usesPortNames && d != nil {
		binding := d.bindings()
		for _, b := range binding {
			key = binary.LittleEndian.AppendUint32(append(key, 'p'), b.id)
		}
		ports = func(e *entry) []PortPrefix { return e.resolved(binding) }
	}
	if class := s.byMatch[string(key)]; class != nil {
		return class
	}
	all := union(s.wildcards, matched)
	list := make([]*entry, len(all))
	for i, at := range all {
		list[i] = &s.entries[at]
	}
	rows := flatten(list, ports, c.proxiedNumber)
	text := verdictsKey(rows)
	class := s.byVerdicts[text]
	if class == nil {
		class = &Class{Number: next(), Verdicts: rows, Lengths: Lengths(rows)}
		s.byVerdicts[text] = class
		c.useProxied(class, 1)
	}
	s.byMatch[string(key)] = class
	return class
}

// drop forgets a peer that is no more, and reports whether it had a row, and
// the class that no peer has any longer.
func (s *Set) drop(d *Identity) (had bool, last *Class) {
	c := s.Peers[d]
	if c == nil {
		return false, nil
	}
	delete(s.Peers, d)
	if c.peers--; c.peers > 0 {
		return true, nil
	}
	delete(s.byVerdicts, verdictsKey(c.Verdicts))
	maps.DeleteFunc(s.byMatch, func(_ string, other *Class) bool { return other == c })
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
