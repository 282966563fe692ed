package compile

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"myelin/internal/table/ledger"
	"myelin/policy"
	"myelin/policy/identity"
)

// FirstDerived is the first number of a peer that package identity has none for.
const FirstDerived = 1 << 31

// inCluster is the bit of such a number by which the datapath knows that its addresses are in the cluster, where names
// (toFQDNs) do not apply.
const inCluster = 1 << 30

// Plain is a number without the bit.
func Plain(number uint32) uint32 {
	if number < FirstDerived {
		return number
	}
	return number &^ inCluster
}

// base is a label set that peers have: an identity's, or that of one where the
// API server is as well.
type base struct {
	labeled[*rule, *base]
	id        uint32
	apiServer bool
	order     uint32 // unlike any other's
	ids       []*Identity
	gone      bool // its identity is no more
}

type (
	peerSelection = selection[*rule, *base]
	peerSelectors = selectors[*rule, *base]
)

// Identity is what the datapath calls an identity: a label set, and the address
// sets that the address is in. All addresses alike share one.
type Identity struct {
	Number  uint32
	base    *base
	members []*addressSet // sorted by number
	key     LedgerKey     // of its number; empty if that is the label set's own
	rows    int           // addresses and prefixes that have it
}

// LedgerKey identifies the owner of a number in a file.
type LedgerKey string

func (k LedgerKey) String() string { return string(k) }

// identities are all that there are.
type identities struct {
	selectors  *peerSelectors
	bases      map[uint32]*base // without those of API servers
	apiServers map[uint32]*base
	order      uint32
	byNumber   map[uint32]*Identity
	byKey      map[string]*Identity
	numbers    *ledger.Numbers[LedgerKey]
	// noLabels is the base of addresses that stand for names. No selector matches it.
	noLabels *base
	// created and unused are those since the last round that are new, or may be unused.
	created []*Identity
	unused  map[*Identity]struct{}
}

func newIdentities(numbers *ledger.Numbers[LedgerKey]) *identities {
	p := &identities{
		selectors: newSelectors[*rule, *base](), bases: map[uint32]*base{}, apiServers: map[uint32]*base{},
		byNumber: map[uint32]*Identity{},
		byKey:    map[string]*Identity{}, numbers: numbers, unused: map[*Identity]struct{}{}, noLabels: &base{},
	}
	p.noLabels.thing = p.noLabels
	// What is outside is there whether or not the table of identities is.
	p.identify(identity.WorldIPv4, []string{"reserved:world-ipv4"})
	p.identify(identity.WorldIPv6, []string{"reserved:world-ipv6"})
	return p
}

// base is that of an identity's number, nil if it isn't known.
func (p *identities) base(id uint32) *base { return p.bases[id] }

// identify learns of an identity. Its labels never change.
func (p *identities) identify(id uint32, labels []string) {
	if b := p.bases[id]; b != nil || id == identity.Unknown {
		if b != nil && b.gone {
			b.gone = false
			if p.byNumber[id] == nil { // it went, while others of the label set stayed
				p.create(b, nil)
			}
		}
		return
	}
	if id == identity.WorldIPv4 || id == identity.WorldIPv6 {
		labels = append(slices.Clone(labels), "reserved:world")
	}
	p.bases[id] = p.newBase(id, labels, false)
}

func (p *identities) newBase(id uint32, labels []string, apiServer bool) *base {
	p.order++
	b := &base{id: id, apiServer: apiServer, order: p.order}
	b.thing, b.labels = b, policy.ParseLabels(labels)
	p.selectors.add(&b.labeled)
	if !apiServer {
		p.create(b, nil)
	}
	return b
}

// forget is told of an identity that is no more.
func (p *identities) forget(id uint32) {
	if b := p.bases[id]; b != nil {
		b.gone = true
		for _, d := range b.ids {
			p.unused[d] = struct{}{}
		}
	}
}

// with is the base itself, or what it is where the API server is, too.
func (b *base) with(apiServer bool, p *identities) *base {
	if !apiServer || b.apiServer {
		return b
	}
	if s := p.apiServers[b.id]; s != nil {
		return s
	}
	s := p.newBase(b.id, append(b.labels.Texts(), "reserved:kube-apiserver"), true)
	p.apiServers[b.id] = s
	return s
}

// number is that of a base in some address sets, a new one if it has none.
func (p *identities) number(b *base, members []*addressSet) uint32 {
	if len(members) == 0 && !b.apiServer {
		return b.id
	}
	var buffer [64]byte
	key := binary.LittleEndian.AppendUint32(buffer[:0], b.order)
	for _, m := range members {
		key = binary.LittleEndian.AppendUint32(key, m.id)
	}
	if d := p.byKey[string(key)]; d != nil {
		return d.Number
	}
	d := p.create(b, members)
	p.byKey[string(key)] = d
	return d.Number
}

func (p *identities) create(b *base, members []*addressSet) *Identity {
	d := &Identity{Number: b.id, base: b, members: members}
	if len(members) > 0 || b.apiServer {
		parts := []string{fmt.Sprintf("%d %t", b.id, b.apiServer)}
		for _, m := range members {
			parts = append(parts, m.source.key)
		}
		slices.Sort(parts[1:])
		d.key = LedgerKey(strings.Join(parts, "\n"))
		d.Number = p.derived(b, d.key)
		for p.byNumber[d.Number] != nil { // the number of an equal identity that is about to be removed
			d.key += "+"
			d.Number = p.derived(b, d.key)
		}
		p.unused[d] = struct{}{}
	}
	for _, m := range members {
		m.ids[d] = struct{}{}
	}
	b.ids = append(b.ids, d)
	p.byNumber[d.Number] = d
	p.created = append(p.created, d)
	return d
}

// derived is the number of an identity that package identity has none for.
func (p *identities) derived(b *base, key LedgerKey) uint32 {
	number := p.numbers.Get(key)
	if !b.outside() {
		number |= inCluster
	}
	return number
}

// outside reports whether the base is that of addresses outside the cluster.
func (b *base) outside() bool { return b.id == identity.WorldIPv4 || b.id == identity.WorldIPv6 }

// ref and unref count rows.
func (p *identities) ref(number uint32) {
	if d := p.byNumber[number]; d != nil {
		d.rows++
	}
}

func (p *identities) unref(number uint32) {
	if d := p.byNumber[number]; d != nil {
		if d.rows--; d.rows == 0 {
			p.unused[d] = struct{}{}
		}
	}
}

// removeUnused removes those that no entry has, and returns them.
func (p *identities) removeUnused() (dead []*Identity) {
	for d := range p.unused {
		if d.rows > 0 || d.key == "" && !d.base.gone {
			continue
		}
		dead = append(dead, d)
		delete(p.byNumber, d.Number)
		for _, m := range d.members {
			delete(m.ids, d)
		}
		d.base.ids = removeElement(d.base.ids, d)
		if d.key != "" {
			key := binary.LittleEndian.AppendUint32(nil, d.base.order)
			for _, m := range d.members {
				key = binary.LittleEndian.AppendUint32(key, m.id)
			}
			delete(p.byKey, string(key))
			p.numbers.Release(d.key)
		}
		if b := d.base; len(b.ids) == 0 && (b.gone || b.apiServer) {
			p.selectors.remove(&b.labeled)
			if b.apiServer {
				delete(p.apiServers, b.id)
			} else {
				delete(p.bases, b.id)
			}
		}
	}
	clear(p.unused)
	return dead
}
