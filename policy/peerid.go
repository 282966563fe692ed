package policy

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"myelin/identity"
	"myelin/table/ledger"
)

// firstDerived is the first number of a peer that package identity has none for.
const firstDerived = 1 << 31

// base is a label set that peers have: an identity's, or that of one where the
// API server is as well.
type base struct {
	labeled[*rule, *base]
	id        uint32
	apiServer bool
	order     uint32 // unlike any other's
	ids       []*peerID
	gone      bool // its identity is no more
}

type (
	peerSelection = selection[*rule, *base]
	peerSelectors = selectors[*rule, *base]
)

// peerID is what the datapath calls an identity: a label set, and the address
// sets that the address is in. All addresses alike share one.
type peerID struct {
	number  uint32
	base    *base
	members []*addressSet // sorted by number
	key     ledgerKey     // of its number; empty if that is the label set's own
	rows    int           // addresses and prefixes that have it
}

// ledgerKey is whose a number is, as it stands in a file.
type ledgerKey string

func (k ledgerKey) String() string { return string(k) }

// peerIDs are all that there are.
type peerIDs struct {
	selectors *peerSelectors
	bases     map[uint32]*base // without those of API servers
	servers   map[uint32]*base
	order     uint32
	byNumber  map[uint32]*peerID
	byKey     map[string]*peerID
	numbers   *ledger.Numbers[ledgerKey]
	// born and idle are those since the last round that are new, or may be needless.
	born []*peerID
	idle map[*peerID]struct{}
}

func newPeerIDs(numbers *ledger.Numbers[ledgerKey]) *peerIDs {
	p := &peerIDs{
		selectors: newSelectors[*rule, *base](), bases: map[uint32]*base{}, servers: map[uint32]*base{}, byNumber: map[uint32]*peerID{},
		byKey: map[string]*peerID{}, numbers: numbers, idle: map[*peerID]struct{}{},
	}
	// What is outside is there whether or not the table of identities is.
	p.identify(identity.WorldIPv4, []string{"reserved:world-ipv4"})
	p.identify(identity.WorldIPv6, []string{"reserved:world-ipv6"})
	return p
}

// base is that of an identity's number, nil if it isn't known.
func (p *peerIDs) base(id uint32) *base { return p.bases[id] }

// identify learns of an identity. Its labels never change.
func (p *peerIDs) identify(id uint32, labels []string) {
	if b := p.bases[id]; b != nil || id == identity.Unknown {
		if b != nil && b.gone {
			b.gone = false
			if p.byNumber[id] == nil { // it went, while others of the label set stayed
				p.bear(b, nil)
			}
		}
		return
	}
	if id == identity.WorldIPv4 || id == identity.WorldIPv6 {
		labels = append(slices.Clone(labels), "reserved:world")
	}
	p.bases[id] = p.newBase(id, labels, false)
}

func (p *peerIDs) newBase(id uint32, labels []string, apiServer bool) *base {
	p.order++
	b := &base{id: id, apiServer: apiServer, order: p.order}
	b.thing, b.labels = b, parseLabels(labels)
	p.selectors.add(&b.labeled)
	if !apiServer {
		p.bear(b, nil)
	}
	return b
}

// forget is told of an identity that is no more.
func (p *peerIDs) forget(id uint32) {
	if b := p.bases[id]; b != nil {
		b.gone = true
		for _, d := range b.ids {
			p.idle[d] = struct{}{}
		}
	}
}

// with is the base itself, or what it is where the API server is, too.
func (b *base) with(apiServer bool, p *peerIDs) *base {
	if !apiServer || b.apiServer {
		return b
	}
	if s := p.servers[b.id]; s != nil {
		return s
	}
	s := p.newBase(b.id, append(b.labels.texts(), "reserved:kube-apiserver"), true)
	p.servers[b.id] = s
	return s
}

// number is that of a base in some address sets, a new one if it has none.
func (p *peerIDs) number(b *base, members []*addressSet) uint32 {
	if len(members) == 0 && !b.apiServer {
		return b.id
	}
	var buffer [64]byte
	key := binary.LittleEndian.AppendUint32(buffer[:0], b.order)
	for _, m := range members {
		key = binary.LittleEndian.AppendUint32(key, m.id)
	}
	if d := p.byKey[string(key)]; d != nil {
		return d.number
	}
	d := p.bear(b, members)
	p.byKey[string(key)] = d
	return d.number
}

func (p *peerIDs) bear(b *base, members []*addressSet) *peerID {
	d := &peerID{number: b.id, base: b, members: members}
	if len(members) > 0 || b.apiServer {
		parts := []string{fmt.Sprintf("%d %t", b.id, b.apiServer)}
		for _, m := range members {
			parts = append(parts, m.source.key)
		}
		slices.Sort(parts[1:])
		d.key = ledgerKey(strings.Join(parts, "\n"))
		d.number = p.numbers.Get(d.key)
		for p.byNumber[d.number] != nil { // somebody's like it, who is about to go
			d.key += "+"
			d.number = p.numbers.Get(d.key)
		}
		p.idle[d] = struct{}{}
	}
	for _, m := range members {
		m.ids[d] = struct{}{}
	}
	b.ids = append(b.ids, d)
	p.byNumber[d.number] = d
	p.born = append(p.born, d)
	return d
}

// ref and unref count rows.
func (p *peerIDs) ref(number uint32) {
	if d := p.byNumber[number]; d != nil {
		d.rows++
	}
}

func (p *peerIDs) unref(number uint32) {
	if d := p.byNumber[number]; d != nil {
		if d.rows--; d.rows == 0 {
			p.idle[d] = struct{}{}
		}
	}
}

// bury removes those that no row has, and returns them.
func (p *peerIDs) bury() (dead []*peerID) {
	for d := range p.idle {
		if d.rows > 0 || d.key == "" && !d.base.gone {
			continue
		}
		dead = append(dead, d)
		delete(p.byNumber, d.number)
		for _, m := range d.members {
			delete(m.ids, d)
		}
		d.base.ids = without(d.base.ids, d)
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
				delete(p.servers, b.id)
			} else {
				delete(p.bases, b.id)
			}
		}
	}
	clear(p.idle)
	return dead
}
