package compile

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"myelin/policy"
	"myelin/policy/identity"
)

// NoIdentity in the place of an identity's number says that there is no row.
const NoIdentity = ^uint32(0)

// prefixCell is a prefix that some address set names: what they say of it, as the
// number of a list, and the number of its row in the kernel. A million of them
// is why this is no row of a table.
type prefixCell struct{ list, number uint32 }

// ownedAddress is the identity of an address in the cluster.
type ownedAddress struct {
	base   *base
	number uint32
}

// markList are what address sets say of one prefix, sorted; each is a set's
// number and whether the prefix is an exception there.
type markList struct {
	of   []uint32
	key  string
	refs int
}

// membership is what the marks of all prefixes that cover an address add up to.
type membership struct {
	podCIDR, apiServer bool
	sets               [4][]*addressSet // by kind of owner
}

// Kinds of owners of an address, as address sets distinguish them.
const (
	worldOwner = iota
	podOwner
	nodeOwner
	namesOwner // an address that stands for names: it is in no set but theirs
)

// AddressChange is a row for an address or a prefix to be written: noNumber takes it away.
type AddressChange struct {
	Prefix netip.Prefix
	Number uint32
}

// space is all addresses that have an identity by a row of their own.
type space struct {
	cells *bart.Table[prefixCell]
	owned *bart.Table[ownedAddress]
	// formerOwners are the numbers of addresses whose pods have gone. If another identity
	// gets one, flows that were decided before must be looked up again.
	formerOwners map[netip.Addr]uint32

	lists    map[uint32]*markList
	byKey    map[string]uint32
	nextList uint32
	cache    map[string]*membership // by the lists from the longest prefix to the shortest

	sets    map[uint32]*addressSet
	bySet   map[string]*addressSet // by key
	nextSet uint32
	dirty   []netip.Prefix
	peers   *identities

	// count is how many prefix cells there are of single addresses and of prefixes, and
	// room how many rows the kernel's maps hold.
	count, room [2]int
	// slice is how many prefixes are marked at a time, 0: all. loads are the sets
	// that have more to come, and coming how many cells that may make.
	slice   int
	loads   []*addressSet
	pending [2]int

	nodes         bool // addresses of nodes count as those outside do
	errorsChanged bool // some set has an error that it hadn't, or none any more
	retryBelow    int  // how many rows there were when a set didn't fit

	changes []AddressChange
	retried bool // among changes are some that failed before
	moved   bool // an address has another identity than before
}

// maxFormerOwners bounds space.former.
const maxFormerOwners = 1 << 16

func newSpace(peers *identities) *space {
	s := &space{
		cells: &bart.Table[prefixCell]{}, owned: &bart.Table[ownedAddress]{}, formerOwners: map[netip.Addr]uint32{},
		lists: map[uint32]*markList{},
		byKey: map[string]uint32{}, cache: map[string]*membership{}, sets: map[uint32]*addressSet{},
		bySet: map[string]*addressSet{},
		peers: peers, room: [2]int{int(^uint(0) >> 1), int(^uint(0) >> 1)},
	}
	return s
}

// mark lets a set say something of a prefix, or no longer. It returns whether
// that changed anything.
func (s *space) mark(p netip.Prefix, set uint32, except, on bool) (changed bool) {
	bit := set<<1 | uint32(boolIndex(except))
	s.cells.Modify(p, func(c prefixCell, ok bool) (prefixCell, bool) {
		if !ok {
			c.number = NoIdentity
		}
		var of []uint32
		if old := s.lists[c.list]; old != nil {
			of = old.of
		}
		i, has := slices.BinarySearch(of, bit)
		if has == on {
			return c, !ok
		}
		changed = true
		s.count[boolIndex(!p.IsSingleIP())] += boolIndex(!ok)
		of = slices.Clone(of)
		if on {
			of = slices.Insert(of, i, bit)
		} else {
			of = slices.Delete(of, i, i+1)
		}
		next := s.list(of)
		s.unlist(c.list)
		c.list = next
		return c, false
	})
	if changed {
		s.dirty = append(s.dirty, p)
	}
	return changed
}

// list is the number of a list; 0 is the empty one.
func (s *space) list(of []uint32) uint32 {
	if len(of) == 0 {
		return 0
	}
	b := make([]byte, 0, 4*len(of))
	for _, m := range of {
		b = binary.LittleEndian.AppendUint32(b, m)
	}
	if id, ok := s.byKey[string(b)]; ok {
		s.lists[id].refs++
		return id
	}
	s.nextList++
	s.lists[s.nextList] = &markList{of: of, key: string(b), refs: 1}
	s.byKey[string(b)] = s.nextList
	return s.nextList
}

func (s *space) unlist(id uint32) {
	l := s.lists[id]
	if l == nil {
		return
	}
	if l.refs--; l.refs == 0 {
		delete(s.lists, id)
		delete(s.byKey, l.key)
		clear(s.cache)
	}
}

// setOwner sets the owner of an address; nil: it has none in the cluster any more.
func (s *space) setOwner(a netip.Addr, b *base) {
	p := netip.PrefixFrom(a, a.BitLen())
	have, ok := s.owned.Get(p)
	switch {
	case b == nil && !ok || ok && have.base == b:
		return
	case b == nil:
		s.owned.Delete(p)
		if len(s.formerOwners) >= maxFormerOwners {
			clear(s.formerOwners)
			s.moved = true
		}
		if have.number == NoIdentity {
			break
		}
		s.formerOwners[a] = have.number
		s.peers.unref(have.number)
		s.changes = append(s.changes, AddressChange{p, NoIdentity})
	case !ok:
		s.owned.Insert(p, ownedAddress{b, NoIdentity})
	default:
		s.owned.Insert(p, ownedAddress{b, have.number})
	}
	s.dirty = append(s.dirty, p)
}

// membershipOf adds up what is said of a prefix.
func (s *space) membershipOf(p netip.Prefix) *membership {
	var buffer [64]byte
	key := buffer[:0]
	for _, c := range s.cells.Supernets(p) {
		if c.list != 0 {
			key = binary.LittleEndian.AppendUint32(key, c.list)
		}
	}
	if m, ok := s.cache[string(key)]; ok {
		return m
	}
	text, m := string(key), &membership{}
	in, out := map[uint32]bool{}, map[uint32]bool{}
	for ; len(key) > 0; key = key[4:] {
		for _, bit := range s.lists[binary.LittleEndian.Uint32(key)].of {
			if bit&1 == 0 {
				in[bit>>1] = true
			} else {
				out[bit>>1] = true
			}
		}
	}
	for id := range in {
		switch {
		case out[id] || id == allIPv4:
		case id == podCIDRs:
			m.podCIDR = true
		case id == apiServers:
			m.apiServer = true
		default:
			set := s.sets[id]
			if set.source.names != nil {
				m.sets[namesOwner] = append(m.sets[namesOwner], set)
				continue
			}
			m.sets[worldOwner] = append(m.sets[worldOwner], set)
			if set.source.pods {
				m.sets[podOwner] = append(m.sets[podOwner], set)
			}
			if set.source.pods || s.nodes {
				m.sets[nodeOwner] = append(m.sets[nodeOwner], set)
			}
		}
	}
	for i := range m.sets {
		slices.SortFunc(m.sets[i], func(a, b *addressSet) int { return int(a.id) - int(b.id) })
	}
	s.cache[text] = m
	return m
}

// flush works out the rows of what was marked, and of all in it.
func (s *space) flush() {
	order := policy.Canonical(s.dirty) // those that cover others first
	s.dirty = nil
	var done netip.Prefix
	for _, p := range order {
		if done.IsValid() && done.Bits() <= p.Bits() && done.Contains(p.Addr()) {
			continue
		}
		if p.IsSingleIP() {
			s.refresh(p)
			continue
		}
		done = p
		var inside []netip.Prefix
		for q := range s.cells.Subnets(p) {
			inside = append(inside, q)
		}
		for q := range s.owned.Subnets(p) {
			inside = append(inside, q)
		}
		for _, q := range inside {
			s.refresh(q)
		}
	}
}

// refresh makes the row of one prefix right.
func (s *space) refresh(p netip.Prefix) {
	m := s.membershipOf(p)
	mine, isOwned := s.owned.Get(p)
	if isOwned {
		who := podOwner
		if mine.base.id == identity.Host || mine.base.id == identity.RemoteNode {
			who = nodeOwner
		}
		apiServer := m.apiServer
		if mine.base == s.peers.noLabels {
			who, apiServer = namesOwner, false
		}
		next := s.peers.number(mine.base.with(apiServer, s.peers), m.sets[who])
		s.updateOwned(p, mine, next, m)
	}
	c, ok := s.cells.Get(p)
	if !ok {
		return
	}
	next := NoIdentity
	switch {
	case isOwned || c.list == 0:
	case m.podCIDR && s.isPodCIDR(c):
		next = identity.Unknown
	case m.podCIDR: // the row of all pods' addresses holds here too
	default:
		outside := s.peers.base(WorldIdentity(p.Addr()))
		next = s.peers.number(outside.with(m.apiServer, s.peers), m.sets[worldOwner])
	}
	s.updateCell(p, c, next, isOwned)
}

func (s *space) isPodCIDR(c prefixCell) bool {
	l := s.lists[c.list]
	return l != nil && slices.Contains(l.of, podCIDRs<<1)
}

func (s *space) updateOwned(p netip.Prefix, have ownedAddress, next uint32, m *membership) {
	if next == have.number {
		return
	}
	before, known := s.formerOwners[p.Addr()]
	delete(s.formerOwners, p.Addr())
	names := have.base == s.peers.noLabels // the address of no packet
	if !names && (have.number != NoIdentity || known && before != next || !known && !m.podCIDR) {
		s.moved = true
	}
	s.swap(p, have.number, next)
	s.owned.Insert(p, ownedAddress{have.base, next})
}

func (s *space) updateCell(p netip.Prefix, c prefixCell, next uint32, isOwned bool) {
	if next != c.number {
		if isOwned { // its owner's row has been written in its place
			s.peers.unref(c.number)
		} else {
			s.swap(p, c.number, next)
			s.moved = true
		}
	}
	if c.list == 0 {
		s.cells.Delete(p)
		s.count[boolIndex(!p.IsSingleIP())]--
		return
	}
	s.cells.Insert(p, prefixCell{c.list, next})
}

// swap notes that a row becomes another one.
func (s *space) swap(p netip.Prefix, before, after uint32) {
	s.peers.ref(after)
	s.peers.unref(before)
	s.changes = append(s.changes, AddressChange{p, after})
}

// lookup is the number that the datapath finds for an address.
func (s *space) lookup(a netip.Addr) uint32 {
	p := netip.PrefixFrom(a, a.BitLen())
	if o, ok := s.owned.Get(p); ok && o.number != NoIdentity {
		return o.number
	}
	for _, c := range s.cells.Supernets(p) {
		if c.number != NoIdentity {
			return c.number
		}
	}
	return WorldIdentity(a)
}
