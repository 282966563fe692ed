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
	before *ruleList
	after  *ruleList
}

// endpoints compares what the endpoints of this node may do with everybody.
func (d *differ) endpoints() {
	alike := map[string]*sided{}
	var order []*sided
	for _, t := range d.before.inOrder() {
		key := t.alike()
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
	labels := s.of.labels()
	s.before, s.after = d.before.rulesOf(dir, labels), d.after.rulesOf(dir, labels)
	if d.explainer.engine.Config.Mode == ModeNever {
		return false
	}
	return d.whole || !s.before.sameRules(s.after)
}

// peer is an end that an endpoint may communicate with.
type peer struct {
	*end
	name string
}

// peers are all addresses that are known.
func (d *differ) peers() (out []peer) {
	bindings := d.before.allBindings()
	like := map[uint32]*end{}
	names := map[uint32]string{}
	engine := d.explainer.engine
	for row := range engine.Addresses.All(engine.DB.ReadTxn()) {
		labels := d.before.labelsAt(row.Addr)
		if like[row.ID] == nil {
			like[row.ID], names[row.ID] = &end{labels: labels, set: parseLabels(labels)}, strings.Join(labels, ",")
		}
		out = append(out, peer{&end{labels: labels, set: like[row.ID].set, addr: row.Addr, bindings: bindings[row.Addr]}, names[row.ID]})
	}
	for _, label := range []string{"reserved:world-ipv4", "reserved:world-ipv6"} {
		out = append(out, peer{outsideEnd(label), label})
	}
	return out
}

// maxExamples bounds the addresses outside that stand for prefixes of rules.
const maxExamples = 1024

// outside are addresses that rules tell apart: one for each prefix, and one for
// each exception.
func (d *differ) outside(s *sided) (out []peer) {
	seen := map[netip.Addr]bool{}
	for _, list := range []*ruleList{s.before, s.after} {
		list.eachPrefix(func(p netip.Prefix) bool {
			if len(out) == maxExamples {
				d.out.Unfinished = fmt.Sprintf("of prefixes only %d are looked at for each endpoint", maxExamples)
				return false
			}
			e, err := d.before.newEnd(p.Addr(), nil)
			if err == nil && e.outside && !seen[e.addr] {
				seen[e.addr] = true
				out = append(out, peer{e, e.addr.String()})
			}
			return true
		})
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
		d.out.LookedPairs++
		ports := s.of.ports
		if dir == Egress {
			ports = p.bindings
		}
		before := s.before.match(p.end, p.family(), ports, nil)
		after := s.after.match(p.end, p.family(), ports, nil)
		for _, t := range d.turns(before, after) {
			pair := PairDiff{
				Direction: dir, Endpoints: s.names, Peer: p.name, Peers: 1, Example: p.addr, Ports: t.ports, Turn: t.Turn,
			}
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
