package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/compile"
)

// alikeEndpoints are endpoints to which the same rules apply.
type alikeEndpoints struct {
	of     *compile.Endpoint
	names  []string
	before *compile.Rules
	after  *compile.Rules
}

// endpoints compares what the endpoints of this node may exchange with all peers.
func (d *differ) endpoints() {
	alike := map[string]*alikeEndpoints{}
	var order []*alikeEndpoints
	for _, t := range d.before.Endpoints() {
		key := t.Alike()
		if alike[key] == nil {
			alike[key] = &alikeEndpoints{of: t}
			order = append(order, alike[key])
		}
		alike[key].names = append(alike[key].names, cmp.Or(t.Name, fmt.Sprintf("endpoint %d", t.Slot)))
	}
	peers := d.peers()
	for _, s := range order {
		for _, dir := range []policy.Direction{policy.Ingress, policy.Egress} {
			if d.timeOver() {
				return
			}
			if d.differs(s, dir) {
				d.compare(s, dir, peers)
			}
		}
	}
}

// differs finds an endpoint's rules, and reports whether they change.
func (d *differ) differs(s *alikeEndpoints, dir policy.Direction) bool {
	labels := s.of.Labels()
	s.before, s.after = d.before.Rules(dir, labels), d.after.Rules(dir, labels)
	if d.explainer.engine.Config.Mode == policy.ModeNever {
		return false
	}
	return d.compareAll || !s.before.Equal(s.after)
}

// peer is an end that an endpoint may communicate with.
type peer struct {
	*compile.End
	name string
}

// peers are all addresses that are known.
func (d *differ) peers() (out []peer) {
	bindings := d.before.AllBindings()
	like := map[uint32]*compile.End{}
	names := map[uint32]string{}
	engine := d.explainer.engine
	for row := range engine.Addresses.All(engine.DB.ReadTxn()) {
		labels := d.before.LabelsAt(row.Addr)
		if like[row.ID] == nil {
			like[row.ID], names[row.ID] = &compile.End{Labels: labels, LabelSet: policy.ParseLabels(labels)},
				strings.Join(labels, ",")
		}
		out = append(out, peer{&compile.End{Labels: labels, LabelSet: like[row.ID].LabelSet, Addr: row.Addr,
			Bindings: bindings[row.Addr]}, names[row.ID]})
	}
	for _, label := range []string{"reserved:world-ipv4", "reserved:world-ipv6"} {
		out = append(out, peer{compile.WorldEnd(label), label})
	}
	return out
}

// maxExamples bounds the addresses outside that stand for prefixes of rules.
const maxExamples = 1024

// outside are addresses that rules tell apart: one for each prefix, and one for
// each exception.
func (d *differ) outside(s *alikeEndpoints) (out []peer) {
	seen := map[netip.Addr]bool{}
	for _, list := range []*compile.Rules{s.before, s.after} {
		list.EachPrefix(func(p netip.Prefix) bool {
			if len(out) == maxExamples {
				d.out.Unfinished = fmt.Sprintf("of prefixes only %d are looked at for each endpoint", maxExamples)
				return false
			}
			e, err := d.before.NewEnd(p.Addr(), nil)
			if err == nil && e.Outside && !seen[e.Addr] {
				seen[e.Addr] = true
				out = append(out, peer{e, e.Addr.String()})
			}
			return true
		})
	}
	return out
}

// compare looks at all peers of endpoints whose rules change.
func (d *differ) compare(s *alikeEndpoints, dir policy.Direction, peers []peer) {
	at := map[string]int{}
	for _, p := range slices.Concat(peers, d.outside(s)) {
		if d.timeOver() {
			return
		}
		d.out.LookedPairs++
		ports := s.of.Ports
		if dir == policy.Egress {
			ports = p.Bindings
		}
		before := s.before.Match(p.End, p.Family(), ports, nil)
		after := s.after.Match(p.End, p.Family(), ports, nil)
		for _, t := range d.changes(before, after) {
			pair := PairDiff{
				Direction: dir, Endpoints: s.names, Peer: p.name, Peers: 1, Example: p.Addr, Ports: t.ports,
				VerdictChange: t.VerdictChange,
			}
			key := fmt.Sprint(pair.Peer, pair.Ports, pair.VerdictChange)
			if i, ok := at[key]; ok {
				d.out.Pairs[i].Peers++
				continue
			}
			at[key] = len(d.out.Pairs)
			d.out.Pairs = append(d.out.Pairs, pair)
		}
	}
}
