package compile

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"myelin/policy"
)

// addressSource says where an address set's prefixes come from.
type addressSource struct {
	// key is the same for sources that always have the same prefixes, also
	// after a restart.
	key string
	// pods: addresses of pods and nodes count as well as those outside.
	pods            bool
	include, except []netip.Prefix // sorted, masked, each once
	group           string
	groups          *policy.Selector
	deny            bool // of a deny rule that names groups
	nodes           *policy.Selector
	// family is which of the nodes' addresses count: -1 all.
	family  int
	service string
	names   []policy.NamePattern // sorted, each once
}

func listPlace(rule string, peer int) string { return fmt.Sprintf("%s peer %d", rule, peer) }

// prefixSource is that of addresses that a rule names; they are tidy.
func prefixSource(p policy.Prefixes, place string, deny bool) addressSource {
	s := addressSource{pods: p.Pods, include: p.Include, except: p.Except, group: p.Group, groups: p.GroupSelector}
	kind := "cidr"
	if p.Pods {
		kind = "ipblock"
	}
	if p.GroupSelector != nil {
		kind += " groups " + p.GroupSelector.Key()
	}
	if p.Group != "" {
		kind += " group " + p.Group
	}
	if s.deny = deny && (p.Group != "" || p.GroupSelector != nil); s.deny {
		kind += " denied"
	}
	if len(s.include)+len(s.except) <= policy.ShortList {
		place = contentKey(s.include, s.except)
	}
	s.key = kind + " " + place
	return s
}

func nodesSource(sel policy.Selector) addressSource {
	return addressSource{key: "nodes " + sel.Key(), pods: true, nodes: &sel, family: -1}
}

// allNodesSource is that of one family's addresses of all nodes.
func allNodesSource(family int) addressSource {
	return addressSource{key: "nodes of family " + strconv.Itoa(family), pods: true, nodes: &policy.Selector{},
		family: family}
}

func serviceSource(name string) addressSource {
	return addressSource{key: "service " + name, service: name}
}

// contentKey is the same for the same prefixes. 128 bits: no two lists of a
// cluster share one by chance.
func contentKey(lists ...[]netip.Prefix) string {
	var out string
	for seed := range uint64(2) {
		d := xxhash.NewWithSeed(seed)
		for _, list := range lists {
			var b []byte
			b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
			for _, p := range list {
				a := p.Addr().As16()
				b = append(append(b, a[:]...), byte(p.Bits()), byte(Family(p.Addr())))
			}
			d.Write(b) // never fails
		}
		out += fmt.Sprintf("%016x", d.Sum64())
	}
	return out
}

// shared reports whether two lists are one, so that they need not be compared.
func shared(a, b []netip.Prefix) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// merge walks two tidy lists, and calls yield with what only one of them has.
func merge(before, after []netip.Prefix, yield func(p netip.Prefix, added bool)) {
	if len(before) > 0 && shared(before, after) {
		return
	}
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0:
			yield(before[0], false)
			before = before[1:]
		case len(before) == 0:
			yield(after[0], true)
			after = after[1:]
		default:
			switch c := before[0].Compare(after[0]); {
			case c < 0:
				yield(before[0], false)
				before = before[1:]
			case c > 0:
				yield(after[0], true)
				after = after[1:]
			default:
				before, after = before[1:], after[1:]
			}
		}
	}
}
