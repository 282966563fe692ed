package dns

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"myelin/l7/dns/message"
)

// Sizes of a table of queries without an answer: as many sets as the queries need.
const (
	pendingWays    = 8
	pendingMinSets = 32
	pendingMaxSets = 512
	// pendingTime is how long an answer is waited for.
	pendingTime = uint64(time.Minute)
)

// pending has the queries of an endpoint that wait for an answer, by hash of addresses, ports, ID and question. If a
// set is full, the oldest query in it is forgotten.
type pending struct {
	sets [][pendingWays]query
}

type query struct {
	key, sent uint64
	epoch     uint32 // FlowRules.Epoch
}

// key is a hash with a secret seed: no sender can find another flow with the same.
func (e *Engine) key(f *flow, id uint16, q *message.Question) uint64 {
	const fixed = 16 + 16 + 5*2 + 1
	var b [fixed + 255]byte
	client, server := f.client.Addr().As16(), f.server.Addr().As16()
	copy(b[:], client[:])
	copy(b[16:], server[:])
	binary.BigEndian.PutUint16(b[32:], f.client.Port())
	binary.BigEndian.PutUint16(b[34:], f.server.Port())
	binary.BigEndian.PutUint16(b[36:], id)
	binary.BigEndian.PutUint16(b[38:], q.Type)
	binary.BigEndian.PutUint16(b[40:], q.Class)
	b[42] = f.proto
	n := fixed + copy(b[fixed:], q.Name.Bytes())
	return maphash.Bytes(e.seed, b[:n])
}

func (p *pending) add(key, now uint64, epoch uint32) {
	if p.sets == nil {
		p.sets = make([][pendingWays]query, pendingMinSets)
	}
	for {
		set := &p.sets[key%uint64(len(p.sets))]
		oldest := &set[0]
		for i := range set {
			q := &set[i]
			if q.key == key || q.sent == 0 || now > q.sent+pendingTime {
				*q = query{key, now, epoch}
				return
			}
			if q.sent < oldest.sent {
				oldest = q
			}
		}
		if len(p.sets) == pendingMaxSets {
			*oldest = query{key, now, epoch}
			return
		}
		p.grow()
	}
}

func (p *pending) grow() {
	old := p.sets
	p.sets = make([][pendingWays]query, 2*len(old))
	for i := range old {
		for _, q := range old[i] {
			set := &p.sets[q.key%uint64(len(p.sets))]
			for j := range set { // a set has room for all of the one it comes from
				if set[j].sent == 0 {
					set[j] = q
					break
				}
			}
		}
	}
}

// take removes a query and returns it.
func (p *pending) take(key, now uint64) (taken query, found bool) {
	if p.sets == nil {
		return taken, false
	}
	set := &p.sets[key%uint64(len(p.sets))]
	for i := range set {
		if q := &set[i]; q.key == key && q.sent != 0 && now <= q.sent+pendingTime {
			taken = *q
			*q = query{}
			return taken, true
		}
	}
	return taken, false
}
