package policy

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// row is a verdict for what its prefix covers and no longer one does.
type row struct {
	portPrefix
	ruling ruling
	rule   uint32
}

// first are the first entries of a prefix, by place in the list: of the admin
// tier, and of the others.
type first struct{ admin, rest int }

func (f first) among(o first) first { return first{min(f.admin, o.admin), min(f.rest, o.rest)} }

const none = int(^uint(0) >> 1)

// flatten makes rows of the entries that a peer is matched by, which are in
// order of precedence and end with one for everything. The rows are sorted, the
// shortest first, and that of all protocols is among them. ports are those of
// an entry.
//
// All rules that match a packet cover the longest prefix that any rule has and
// that covers the packet; so does no other. So the row of that prefix can be
// worked out from the rules that cover it, and knows the verdict.
func flatten(list []*entry, ports func(*entry) []portPrefix) []row {
	best := make(map[portPrefix]first, len(list))
	var lengths [256]uint32 // by protocol: bit n says that there are prefixes of n bits
	for place, e := range list {
		of := first{none, place}
		if e.admin {
			of = first{place, none}
		}
		for _, p := range ports(e) {
			have, ok := best[p]
			if !ok {
				have = first{none, none}
			}
			best[p] = have.among(of)
			lengths[p.proto] |= 1 << p.bits
		}
	}
	order := make([]portPrefix, 0, len(best))
	for p := range best {
		order = append(order, p)
	}
	slices.SortFunc(order, comparePrefixes)
	rows := make([]row, 0, len(order))
	for _, p := range order {
		up, inherited := above(p, best, &lengths)
		mine := best[p].among(inherited)
		best[p] = mine
		decides := winner(list, mine)
		if up && decides.says(winner(list, inherited)) {
			continue
		}
		rows = append(rows, row{p, decides.ruling, decides.id()})
	}
	return rows
}

// above is what the next larger prefix has that some rule has.
func above(p portPrefix, best map[portPrefix]first, lengths *[256]uint32) (bool, first) {
	for {
		var ok bool
		if p, ok = p.parent(); !ok {
			return false, first{none, none}
		}
		if lengths[p.proto]&(1<<p.bits) == 0 {
			continue
		}
		if f, ok := best[p]; ok {
			return true, f
		}
	}
}

func winner(list []*entry, f first) *entry {
	if f.admin != none && list[f.admin].ruling != passed {
		return list[f.admin]
	}
	return list[f.rest]
}

// comparePrefixes puts shorter ones before those that they cover.
func comparePrefixes(a, b portPrefix) int {
	return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.bits, b.bits), cmp.Compare(a.port, b.port))
}

// rowsKey is rows as a key: equal ones have the same.
func rowsKey(rows []row) string {
	b := make([]byte, 0, 9*len(rows))
	for _, r := range rows {
		b = binary.LittleEndian.AppendUint16(b, r.port)
		b = append(b, r.proto, r.bits, byte(r.ruling))
		b = binary.LittleEndian.AppendUint32(b, r.rule)
	}
	return string(b)
}

// lookup is what the datapath does: the longest row that covers the packet.
func lookup(rows []row, proto uint8, port uint16) row {
	var found row
	for _, r := range rows {
		if r.covers(proto, port) && (found.proto == ProtoAny || r.bits >= found.bits) {
			found = r
		}
	}
	return found
}
