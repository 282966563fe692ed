package policy

import (
	"encoding/binary"
	"slices"
)

// addition is a peer that a set in the kernel gets a row for.
type addition struct {
	set   *set
	peer  uint32
	class *class
	fresh bool // the class has no rows yet
}

// peerRow is a row of the map peer_classes.
type peerRow struct{ set, peer uint32 }

// plan is what the kernel must learn, in this order: new sets and additions,
// addresses, endpoints. Then what is over may go.
type plan struct {
	sets      []*set
	additions []addition
	changes   []change
	bump      bool // some address has become somebody else's
	targets   map[*target]struct{}
	overSets  []*set
	overPeers []peerRow
	over      []*class
}

func (p *plan) empty() bool {
	return len(p.sets)+len(p.additions)+len(p.changes)+len(p.targets)+len(p.overSets)+len(p.overPeers)+len(p.over) == 0 && !p.bump
}

// flush works out what has changed since it was called last. Sets that nobody
// needs any more go with the next call: until the new ones are in the kernel,
// the old ones must know all peers that addresses become. So there is more to
// do when leftover says so.
func (c *compiler) flush() *plan {
	p := &plan{targets: map[*target]struct{}{}}
	needless := c.needless()
	for s := range c.dirty {
		c.decide(s, p)
	}
	clear(c.dirty)
	for _, t := range c.leaving {
		c.assign(t, [2][2]*set{})
		p.targets[t] = struct{}{}
	}
	c.leaving = nil
	c.abandon(needless, p)
	c.refit()
	c.space.advance()
	c.space.flush()
	p.changes, p.bump = c.space.changes, c.space.bump
	c.space.changes, c.space.bump = nil, false
	dead := c.peers.bury()
	for _, d := range dead {
		c.without(d, p)
	}
	for _, d := range c.peers.born {
		if c.peers.byNumber[d.number] == d {
			c.meet(d, p)
		}
	}
	c.peers.born = nil
	c.promote(p)
	c.build(p)
	return p
}

// refit tries address sets again that didn't fit, when rows have gone.
func (c *compiler) refit() {
	if c.space.used(0)+c.space.used(1) >= c.space.least {
		return
	}
	c.space.least = 0
	for _, set := range c.space.bySet {
		if set.err != nil {
			c.fill(set)
		}
	}
}

// leftover reports whether some set has no endpoint any more.
func (c *compiler) leftover() bool { return len(c.needless()) > 0 }

// needless are the sets that no endpoint has.
func (c *compiler) needless() (out []*set) {
	for _, s := range c.sets {
		if s.users == 0 {
			out = append(out, s)
		}
	}
	return out
}

// abandon lets go of sets, if still no endpoint has them. By now the new sets
// have their rules, so that what both speak of stays.
func (c *compiler) abandon(needless []*set, p *plan) {
	for _, s := range needless {
		if s.users > 0 {
			continue
		}
		delete(c.sets, s.key)
		c.release(s)
		if s.number != 0 {
			p.overSets = append(p.overSets, s)
		}
	}
}

// build fills the sets that are new, and those that didn't fit so far.
func (c *compiler) build(p *plan) {
	if c.space.unfit {
		c.space.unfit = false
		for _, s := range c.sets {
			if err := s.problem(); err != nil && s.number != 0 {
				c.fail(s, err, p)
			}
		}
	}
	fresh := c.fresh
	c.fresh = nil
	for _, s := range fresh {
		if c.sets[s.key] != s || s.number != 0 {
			continue
		}
		if s.loading() {
			c.fresh = append(c.fresh, s)
			continue
		}
		had := s.err
		if s.err = s.problem(); s.err != nil {
			c.fresh = append(c.fresh, s)
		} else {
			s.build(c.next)
			p.sets = append(p.sets, s)
		}
		if (had == nil) != (s.err == nil) {
			c.turn(s, p)
		}
	}
}

// turn has the rows of a set's endpoints written again.
func (c *compiler) turn(s *set, p *plan) {
	for _, t := range c.targets {
		if t.has(s) {
			p.targets[t] = struct{}{}
		}
	}
}

func (t *target) has(s *set) bool {
	for _, of := range t.sets {
		if of[0] == s || of[1] == s {
			return true
		}
	}
	return false
}

// fail notes that a set isn't in the kernel, and why. It is tried again with
// the next flush, under another number.
func (c *compiler) fail(s *set, err error, p *plan) {
	over := *s
	p.overSets = append(p.overSets, &over)
	s.err, s.number, s.byRows, s.byMatch, s.peers = err, 0, nil, nil, nil
	c.fresh = append(c.fresh, s)
	c.turn(s, p)
}

// problem is why some rule of the set can't be in the kernel.
func (s *set) problem() error {
	for i := range s.entries {
		if r := s.entries[i].rule; r != nil {
			for _, a := range r.addresses {
				if a.set.err != nil {
					return &ruleError{r.Origin, a.set.err}
				}
			}
		}
	}
	return nil
}

// ruleError says which rule doesn't fit.
type ruleError struct {
	origin Origin
	err    error
}

func (e *ruleError) Error() string { return e.origin.String() + ": " + e.err.Error() }

func (e *ruleError) Unwrap() error { return e.err }

// decide finds the sets that the endpoints of a subject need.
func (c *compiler) decide(s *subject, p *plan) {
	for t := range s.targets {
		if !t.gone {
			c.decideTarget(t)
			p.targets[t] = struct{}{}
		}
	}
	if len(s.targets) == 0 && c.known[s.key] == s {
		delete(c.known, s.key)
		c.subjects.remove(&s.labeled)
	}
}

// rulesFor are the rules that a subject's endpoints are judged by, in order.
// Where no policy speaks of the direction, nothing is decided.
func (c *compiler) rulesFor(s *subject, dir Direction) (rules []*rule, isolated, decided bool) {
	var required [2][]Selector
	for _, chosen := range s.by {
		for spec := range chosen.users {
			for action := range required {
				required[action] = append(required[action], spec.Required[dir][action]...)
			}
			isolated = isolated || spec.Tier == TierDefault && spec.Isolates[dir]
			for _, r := range spec.rules {
				if r.Direction == dir {
					rules = append(rules, r)
				}
			}
		}
	}
	for i, r := range rules {
		if r.Action != Pass {
			rules[i] = r.asking(required[r.Action], c.finder(r.Action))
		}
	}
	arrange(rules)
	return rules, isolated, isolated || len(rules) > 0
}

// setsFor are the sets of both families; they share one where no rule tells
// them apart.
func (c *compiler) setsFor(t *target, dir Direction, rules []*rule, isolated bool) (out [2]*set) {
	apart := slices.ContainsFunc(rules, func(r *rule) bool { return r.peers.any[0] != r.peers.any[1] })
	host := dir == Ingress && !t.host && !c.config.HostDenied
	for family := range out {
		b := []byte{byte(dir), byte(boolIndex(isolated)), byte(boolIndex(host)), byte(boolIndex(apart) * family)}
		for _, r := range rules {
			b = append(binary.LittleEndian.AppendUint32(append(b, 0xff), r.id), r.asked...)
			if dir == Ingress && len(r.names) > 0 {
				b = append(b, ownPorts(r, t)...)
			}
		}
		key := hash128(string(b))
		s := c.sets[key]
		if s == nil {
			s = c.newSet(key, dir, family, t, rules, isolated, host)
		}
		out[family] = s
	}
	return out
}

// ownPorts is what a rule's names mean at an endpoint, as text.
func ownPorts(r *rule, t *target) (b []byte) {
	for _, p := range resolveOwn(r.names, t.ports) {
		b = binary.LittleEndian.AppendUint16(append(b, 'p', p.proto), p.port)
	}
	return b
}

func resolveOwn(names []portName, ports []binding) (out []portPrefix) {
	for _, n := range names {
		for _, b := range ports {
			if b.matches(n) {
				out = append(out, portPrefix{b.number, b.proto, 16})
			}
		}
	}
	return out
}

func (c *compiler) newSet(key string, dir Direction, family int, t *target, rules []*rule, isolated, host bool) *set {
	s := &set{key: key, dir: dir, family: family, place: map[*rule]uint32{}}
	s.entries, s.hostAt = entries(rules, isolated, host)
	for i := range s.entries {
		e := &s.entries[i]
		switch {
		case e.rule == nil:
			if i != s.hostAt {
				s.anyone = append(s.anyone, uint32(i))
			}
			continue
		case e.rule.peers.any[family]:
			s.anyone = append(s.anyone, uint32(i))
		}
		s.place[e.rule] = uint32(i)
		if dir == Ingress && len(e.names) > 0 {
			e.ports = slices.Concat(e.ports, resolveOwn(e.names, t.ports))
		}
		s.named = s.named || dir == Egress && len(e.names) > 0
	}
	c.sets[key] = s
	c.fresh = append(c.fresh, s)
	c.acquire(s)
	return s
}

// meet gives a new peer its class in all sets that name it.
func (c *compiler) meet(d *peerID, p *plan) {
	matched := map[*set][]uint32{}
	touch := func(r *rule, match bool) {
		for s := range r.sets {
			if s.number == 0 {
				continue // it will be built
			}
			if at := s.place[r]; match && !slices.Contains(s.anyone, at) && !slices.Contains(matched[s], at) {
				matched[s] = append(matched[s], at)
			} else if _, ok := matched[s]; !ok {
				matched[s] = nil
			}
		}
	}
	for _, sel := range d.base.by {
		for r := range sel.users {
			if r == nil {
				for _, s := range c.sets {
					if s.hosts == sel && s.hostAt >= 0 && s.number != 0 {
						matched[s] = append(matched[s], uint32(s.hostAt))
					}
				}
				continue
			}
			touch(r, slices.Contains(r.selections, sel))
		}
	}
	for _, m := range d.members {
		for r := range m.users {
			if r != nil {
				touch(r, slices.ContainsFunc(r.addresses, func(a addressPeer) bool { return a.set == m && a.selects(d.base) }))
			}
		}
		for name, n := range c.named {
			if m.binding.name != "" && m.binding.matches(name) {
				for r := range n.users {
					touch(r, false)
				}
			}
		}
	}
	for s, list := range matched {
		slices.Sort(list)
		if class, fresh := s.put(d, list, c.next); class != nil {
			p.additions = append(p.additions, addition{s, d.number, class, fresh})
		}
	}
}

// without takes a peer out of all sets.
func (c *compiler) without(d *peerID, p *plan) {
	for _, s := range c.sets {
		had, last := s.drop(d)
		if had {
			p.overPeers = append(p.overPeers, peerRow{s.number, d.number})
		}
		if last != nil {
			p.over = append(p.over, last)
		}
	}
}
