package compile

import (
	"cmp"
	"encoding/binary"
	"slices"

	"myelin/policy"
)

// PortVerdict is a verdict for what its prefix covers and no longer one does.
type PortVerdict struct {
	PortPrefix
	Verdict Verdict
	// Proxy: the flow passes through the proxy.
	Proxy bool
	// Rule is the number of the rule that decides, or of several that the proxy enforces together.
	Rule uint32
}

// firstMatch are the first entries of a prefix, by place in the list: of the admin tier, and of the others. proxied are
// all those that the proxy enforces, sorted.
type firstMatch struct {
	admin, rest int
	proxied     []uint32
}

func (f firstMatch) min(o firstMatch) firstMatch {
	return firstMatch{min(f.admin, o.admin), min(f.rest, o.rest), union(f.proxied, o.proxied)}
}

const noEntry = int(^uint(0) >> 1)

// flatten makes rows of the entries that a peer is matched by, which are in
// order of precedence and end with one for everything. The rows are sorted, the
// shortest first, and that of all protocols is among them. ports are those of
// an entry.
//
// All rules that match a packet cover the longest prefix that any rule has and
// that covers the packet; so does no other. So the row of that prefix can be
// worked out from the rules that cover it, and knows the verdict. number is that of
// entries which the proxy enforces together.
func flatten(list []*entry, ports func(*entry) []PortPrefix, number func([]*entry) uint32) []PortVerdict {
	best := make(map[PortPrefix]firstMatch, len(list))
	var lengths [256]uint32 // by protocol: bit n says that there are prefixes of n bits
	for place, e := range list {
		of := firstMatch{noEntry, place, nil}
		switch {
		case e.admin:
			of = firstMatch{place, noEntry, nil}
		case e.proxied:
			of = firstMatch{noEntry, noEntry, []uint32{uint32(place)}}
		}
		for _, p := range ports(e) {
			have, ok := best[p]
			if !ok {
				have = firstMatch{noEntry, noEntry, nil}
			}
			best[p] = have.min(of)
			lengths[p.Proto] |= 1 << p.Bits
		}
	}
	order := make([]PortPrefix, 0, len(best))
	for p := range best {
		order = append(order, p)
	}
	slices.SortFunc(order, ComparePrefixes)
	rows := make([]PortVerdict, 0, len(order))
	for _, p := range order {
		up, inherited := above(p, best, &lengths)
		mine := best[p].min(inherited)
		best[p] = mine
		decides := winner(list, mine, number)
		if up && decides == winner(list, inherited, number) {
			continue
		}
		decides.PortPrefix = p
		rows = append(rows, decides)
	}
	return rows
}

// above is what the next larger prefix has that some rule has.
func above(p PortPrefix, best map[PortPrefix]firstMatch, lengths *[256]uint32) (bool, firstMatch) {
	for {
		var ok bool
		if p, ok = p.Parent(); !ok {
			return false, firstMatch{noEntry, noEntry, nil}
		}
		if lengths[p.Proto]&(1<<p.Bits) == 0 {
			continue
		}
		if f, ok := best[p]; ok {
			return true, f
		}
	}
}

// winner is the verdict of the entries that match, without the prefix.
func winner(list []*entry, f firstMatch, number func([]*entry) uint32) PortVerdict {
	first := f.rest
	if f.admin != noEntry && list[f.admin].verdict != Passed {
		first = f.admin
	} else if len(f.proxied) > 0 && int(f.proxied[0]) < f.rest {
		all := make([]*entry, len(f.proxied))
		for i, at := range f.proxied {
			all[i] = list[at]
		}
		return PortVerdict{Verdict: Allowed, Rule: number(all), Proxy: true}
	}
	return PortVerdict{Verdict: list[first].verdict, Rule: list[first].id()}
}

// ComparePrefixes puts shorter ones before those that they cover.
func ComparePrefixes(a, b PortPrefix) int {
	return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Bits, b.Bits), cmp.Compare(a.Port, b.Port))
}

// verdictsKey is rows as a key: equal ones have the same.
func verdictsKey(rows []PortVerdict) string {
	b := make([]byte, 0, 10*len(rows))
	for _, r := range rows {
		b = binary.LittleEndian.AppendUint16(b, r.Port)
		b = append(b, r.Proto, r.Bits, byte(r.Verdict), byte(boolIndex(r.Proxy)))
		b = binary.LittleEndian.AppendUint32(b, r.Rule)
	}
	return string(b)
}

// Lookup is what the datapath does: the longest row that covers the packet.
func Lookup(rows []PortVerdict, proto uint8, port uint16) PortVerdict {
	var found PortVerdict
	for _, r := range rows {
		if r.Covers(proto, port) && (found.Proto == policy.ProtoAny || r.Bits >= found.Bits) {
			found = r
		}
	}
	return found
}
