package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// sided are the endpoints that are judged alike.
type sided struct {
	of     *target
	names  []string
	before []entry
	after  []entry
	hostAt [2]int
	// decided is whether any policy speaks of them, before and after.
	decided [2]bool
}

// endpoints compares what the endpoints of this node may do with everybody.
func (d *differ) endpoints() {
	alike := map[string]*sided{}
	var order []*sided
	for _, t := range d.before.inOrder() {
		key := t.subject.key + fmt.Sprint(t.ports, t.host)
		if alike[key] == nil {
			alike[key] = &sided{of: t}
			order = append(order, alike[key])
		}
		alike[key].names = append(alike[key].names, cmp.Or(t.name, fmt.Sprintf("endpoint %d", t.slot)))
	}
	peers := d.peers()
	for _, s := range order {
		for _, dir := range []Direction{Ingress, Egress} {
			if d.stopped() {
				return
			}
			if d.differs(s, dir) {
				d.compare(s, dir, peers)
			}
		}
	}
}

// differs finds an endpoint's rules, and reports whether they change.
func (d *differ) differs(s *sided, dir Direction) bool {
	none := func(*subject) {}
	labels := s.of.subject.labels
	s.before, s.hostAt[0], s.decided[0] = d.before.entriesFor(dir, labels, s.of.host, none)
	s.after, s.hostAt[1], s.decided[1] = d.after.entriesFor(dir, labels, s.of.host, none)
	if d.engine.Config.Mode == ModeNever {
		return false
	}
	same := func(a, b entry) bool {
		if a.rule == nil || b.rule == nil {
			return a.rule == b.rule && a.ruling == b.ruling
		}
		return a.rule.key == b.rule.key && a.rule.asked == b.rule.asked
	}
	return d.whole || s.decided[0] != s.decided[1] || !slices.EqualFunc(s.before, s.after, same)
}

// peer is somebody whom an endpoint may talk to.
type peer struct {
	end
	name string
}

// peers are all addresses that are known.
func (d *differ) peers() (out []peer) {
	bindings := map[netip.Addr][]binding{}
	for _, p := range d.before.pods {
		for _, a := range p.addresses {
			bindings[a] = p.bindings
		}
	}
	texts := map[uint32]labelSet{}
	names := map[uint32]string{}
	for row := range d.engine.Addresses.All(d.engine.DB.ReadTxn()) {
		labels := d.before.labelsAt(row.Addr)
		if texts[row.ID] == nil {
			texts[row.ID], names[row.ID] = parseLabels(labels), strings.Join(labels, ",")
		}
		out = append(out, peer{end{labels: labels, set: texts[row.ID], addr: row.Addr, bindings: bindings[row.Addr]}, names[row.ID]})
	}
	for family := range 2 {
		label := [...]string{"reserved:world-ipv4", "reserved:world-ipv6"}[family]
		out = append(out, peer{end{labels: []string{label}, set: parseLabels([]string{label}), outside: true}, label})
	}
	return out
}

// maxExamples bounds the addresses outside that stand for prefixes of rules.
const maxExamples = 1024

// outside are addresses that rules tell apart: one for each prefix, and one for
// each exception.
func (d *differ) outside(s *sided) (out []peer) {
	seen := map[netip.Addr]bool{}
	for i, list := range [][]entry{s.before, s.after} {
		c := []*compiler{d.before, d.after}[i]
		for _, e := range list {
			if e.rule == nil {
				continue
			}
			for _, a := range e.rule.peers.addresses {
				for _, p := range slices.Concat(c.included(&a.source), a.source.except) {
					if len(out) == maxExamples {
						d.out.Unfinished = fmt.Sprintf("of prefixes only %d are looked at for each endpoint", maxExamples)
						return out
					}
					x, err := d.before.end(Who{Addr: p.Addr()})
					if err == nil && x.outside && !seen[x.addr] {
						seen[x.addr] = true
						out = append(out, peer{*x, x.addr.String()})
					}
				}
			}
		}
	}
	return out
}

// compare looks at all peers of endpoints whose rules change.
func (d *differ) compare(s *sided, dir Direction, peers []peer) {
	at := map[string]int{}
	for _, p := range slices.Concat(peers, d.outside(s)) {
		if d.stopped() {
			return
		}
		for _, family := range p.families() {
			d.out.LookedPairs++
			before, after := d.rows(0, s, dir, &p, family), d.rows(1, s, dir, &p, family)
			for _, t := range d.turns(before, after) {
				pair := PairDiff{Direction: dir, Endpoints: s.names, Peer: p.name, Peers: 1, Example: p.addr, Ports: t.ports, Turn: t.Turn}
				key := fmt.Sprint(pair.Peer, pair.Ports, pair.Turn)
				if i, ok := at[key]; ok {
					d.out.Pairs[i].Peers++
					continue
				}
				at[key] = len(d.out.Pairs)
				d.out.Pairs = append(d.out.Pairs, pair)
			}
		}
	}
}

// families are those that a peer may have.
func (p *peer) families() []int {
	switch {
	case p.addr.IsValid():
		return []int{familyOf(p.addr)}
	case world(0).matches(p.set):
		return []int{0}
	}
	return []int{1}
}

// rows are what is said of a pair, before (0) or after (1).
func (d *differ) rows(when int, s *sided, dir Direction, p *peer, family int) []row {
	if !s.decided[when] {
		return []row{{ruling: allowed}}
	}
	c, list := d.before, s.before
	if when == 1 {
		c, list = d.after, s.after
	}
	ports := s.of.ports
	if dir == Egress {
		ports = p.bindings
	}
	matched := c.matched(list, s.hostAt[when], &p.end, family, ports, func(*entry, bool) {})
	return flatten(matched, func(e *entry) []portPrefix { return e.ports })
}
