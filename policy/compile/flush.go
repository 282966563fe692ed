package compile

import (
	"encoding/binary"
	"maps"
	"slices"

	"myelin/policy"
)

// Addition is a peer that a set in the kernel gets a row for.
type Addition struct {
	Set   *Set
	Peer  uint32
	Class *Class
	Fresh bool // the class has no rows yet
}

// PeerKey is a row of the map peer_classes.
type PeerKey struct{ Set, Peer uint32 }

// Plan is what the kernel must learn, in this order: new sets and additions,
// addresses, endpoints. Then what is over may go.
type Plan struct {
	NewSets         []*Set
	Additions       []Addition
	Addresses       []AddressChange
	Moved           bool // an address has another identity than before
	Endpoints       map[*Endpoint]struct{}
	ObsoleteSets    []*Set
	ObsoletePeers   []PeerKey
	ObsoleteClasses []*Class
}

// Merge adds a plan that was made after this one, of which nothing has been written. The plan that is merged must not
// be used any more.
func (p *Plan) Merge(next *Plan) {
	p.NewSets = append(p.NewSets, next.NewSets...)
	p.Additions = append(p.Additions, next.Additions...)
	p.Addresses = append(p.Addresses, next.Addresses...)
	p.Moved = p.Moved || next.Moved
	maps.Copy(p.Endpoints, next.Endpoints)
	p.ObsoleteSets = append(p.ObsoleteSets, next.ObsoleteSets...)
	p.ObsoletePeers = append(p.ObsoletePeers, next.ObsoletePeers...)
	p.ObsoleteClasses = append(p.ObsoleteClasses, next.ObsoleteClasses...)
}

func (p *Plan) empty() bool {
	return len(p.NewSets)+len(p.Additions)+len(p.Addresses)+len(p.Endpoints)+len(p.ObsoleteSets)+len(p.ObsoletePeers)+
		len(p.ObsoleteClasses) == 0 && !p.Moved
}

// Flush works out what has changed since it was called last. Sets that no endpoint
// needs any more go with the next call: until the new ones are in the kernel,
// the old ones must know all peers that addresses become. So there is more to
// do when leftover says so.
func (c *Compiler) Flush() *Plan {
	p := &Plan{Endpoints: map[*Endpoint]struct{}{}}
	needless := c.unusedSets()
	for s := range c.dirty {
		c.updateSubject(s, p)
	}
	clear(c.dirty)
	for _, t := range c.removed {
		c.assign(t, [2][2]*Set{})
		p.Endpoints[t] = struct{}{}
	}
	c.removed = nil
	c.releaseUnused(needless, p)
	c.refit()
	c.space.advance()
	c.space.flush()
	p.Addresses, p.Moved = c.space.changes, c.space.moved
	c.space.changes, c.space.moved = nil, false
	dead := c.peers.removeUnused()
	for _, d := range dead {
		c.removePeer(d, p)
	}
	for _, d := range c.peers.created {
		if c.peers.byNumber[d.Number] == d {
			c.addPeer(d, p)
		}
	}
	c.peers.created = nil
	c.assignWaiting(p)
	c.build(p)
	return p
}

// refit tries address sets again that didn't fit, when rows have gone.
func (c *Compiler) refit() {
	if c.space.used(0)+c.space.used(1) >= c.space.retryBelow {
		return
	}
	c.space.retryBelow = 0
	for _, set := range c.space.bySet {
		if set.err != nil {
			c.fill(set)
		}
	}
}

// HasUnusedSets reports whether some set has no endpoint any more.
func (c *Compiler) HasUnusedSets() bool { return len(c.unusedSets()) > 0 }

// unusedSets are the sets that no endpoint has.
func (c *Compiler) unusedSets() (out []*Set) {
	for _, s := range c.sets {
		if s.users == 0 {
			out = append(out, s)
		}
	}
	return out
}

// releaseUnused releases sets, if still no endpoint has them. By now the new sets
// have acquired their rules, so that what both use stays.
func (c *Compiler) releaseUnused(needless []*Set, p *Plan) {
	for _, s := range needless {
		if s.users > 0 {
			continue
		}
		delete(c.sets, s.key)
		c.release(s)
		if s.Number != 0 {
			p.ObsoleteSets = append(p.ObsoleteSets, s)
		}
		for class := range s.Classes() {
			c.useProxied(class, -1)
		}
	}
}

// build fills the sets that are new, and those that didn't fit so far.
func (c *Compiler) build(p *Plan) {
	if c.space.errorsChanged {
		c.space.errorsChanged = false
		for _, s := range c.sets {
			if err := s.problem(); err != nil && s.Number != 0 {
				c.FailSet(s, err, p)
			}
		}
	}
	fresh := c.fresh
	c.fresh = nil
	for _, s := range fresh {
		if c.sets[s.key] != s || s.Number != 0 {
			continue
		}
		if s.loading() {
			c.fresh = append(c.fresh, s)
			continue
		}
		had := s.Err
		if s.Err = s.problem(); s.Err != nil {
			c.fresh = append(c.fresh, s)
		} else {
			s.build(c)
			p.NewSets = append(p.NewSets, s)
		}
		if (had == nil) != (s.Err == nil) {
			c.updateEndpointsOf(s, p)
		}
	}
}

// updateEndpointsOf has the rows of a set's endpoints written again.
func (c *Compiler) updateEndpointsOf(s *Set, p *Plan) {
	for _, t := range c.endpoints {
		if t.has(s) {
			p.Endpoints[t] = struct{}{}
		}
	}
}

func (t *Endpoint) has(s *Set) bool {
	for _, of := range t.Sets {
		if of[0] == s || of[1] == s {
			return true
		}
	}
	return false
}

// FailSet notes that a set isn't in the kernel, and why. It is tried again with
// the next flush, under another number.
func (c *Compiler) FailSet(s *Set, err error, p *Plan) {
	for class := range s.Classes() {
		c.useProxied(class, -1)
	}
	over := *s
	p.ObsoleteSets = append(p.ObsoleteSets, &over)
	s.Err, s.Number, s.byVerdicts, s.byMatch, s.Peers = err, 0, nil, nil, nil
	c.fresh = append(c.fresh, s)
	c.updateEndpointsOf(s, p)
}

// problem is why some rule of the set can't be in the kernel.
func (s *Set) problem() error {
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
	origin policy.Origin
	err    error
}

func (e *ruleError) Error() string { return e.origin.String() + ": " + e.err.Error() }

func (e *ruleError) Unwrap() error { return e.err }

// updateSubject finds the sets that the endpoints of a subject need.
func (c *Compiler) updateSubject(s *subject, p *Plan) {
	for t := range s.targets {
		if !t.Gone {
			c.assignSets(t)
			p.Endpoints[t] = struct{}{}
		}
	}
	if len(s.targets) == 0 && c.subjectsByLabels[s.key] == s {
		delete(c.subjectsByLabels, s.key)
		c.subjects.remove(&s.labeled)
	}
}

// rulesFor are the rules of a subject's endpoints, in order. Without a policy
// for the direction, nothing is enforced.
func (c *Compiler) rulesFor(s *subject, dir policy.Direction) (rules []*rule, isolated, decided bool) {
	var required [2][]policy.Selector
	for _, chosen := range s.by {
		for spec := range chosen.users {
			for action := range required {
				required[action] = append(required[action], spec.Required[dir][action]...)
			}
			isolated = isolated || spec.Tier == policy.TierDefault && spec.Isolates[dir]
			for _, r := range spec.rules {
				if r.Direction == dir {
					rules = append(rules, r)
				}
			}
		}
	}
	for i, r := range rules {
		if r.Action != policy.Pass {
			rules[i] = r.withRequired(required[r.Action], c.finder(r.Action))
		}
	}
	sortRules(rules)
	return rules, isolated, isolated || len(rules) > 0
}

// setsFor are the sets of both families; they share one where no rule tells
// them apart.
func (c *Compiler) setsFor(t *Endpoint, dir policy.Direction, rules []*rule, isolated bool) (out [2]*Set) {
	apart := slices.ContainsFunc(rules, func(r *rule) bool { return r.peers.any[0] != r.peers.any[1] })
	host := dir == policy.Ingress && !t.host && !c.Config.HostDenied
	for family := range out {
		b := []byte{byte(dir), byte(boolIndex(isolated)), byte(boolIndex(host)), byte(boolIndex(apart) * family)}
		for _, r := range rules {
			b = append(binary.LittleEndian.AppendUint32(append(b, 0xff), r.id), r.required...)
			if dir == policy.Ingress && len(r.names) > 0 {
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
func ownPorts(r *rule, t *Endpoint) (b []byte) {
	for _, p := range resolveOwn(r.names, t.Ports) {
		b = binary.LittleEndian.AppendUint16(append(b, 'p', p.Proto), p.Port)
	}
	return b
}

func resolveOwn(names []portName, ports []PortBinding) (out []PortPrefix) {
	for _, n := range names {
		for _, b := range ports {
			if b.matches(n) {
				out = append(out, PortPrefix{b.number, b.proto, 16})
			}
		}
	}
	return out
}

func (c *Compiler) newSet(key string, dir policy.Direction, family int, t *Endpoint, rules []*rule, isolated,
	host bool) *Set {
	s := &Set{key: key, Dir: dir, family: family, places: map[*rule]uint32{}}
	s.entries, s.hostAt = entries(rules, isolated, host)
	for i := range s.entries {
		e := &s.entries[i]
		switch {
		case e.rule == nil:
			if i != s.hostAt {
				s.wildcards = append(s.wildcards, uint32(i))
			}
			continue
		case e.rule.peers.any[family]:
			s.wildcards = append(s.wildcards, uint32(i))
		}
		s.places[e.rule] = uint32(i)
		if dir == policy.Ingress && len(e.names) > 0 {
			e.ports = slices.Concat(e.ports, resolveOwn(e.names, t.Ports))
		}
		s.watchesDNS = s.watchesDNS || dir == policy.Egress && e.rule.watchesDNS()
		s.usesPortNames = s.usesPortNames || dir == policy.Egress && len(e.names) > 0
	}
	c.sets[key] = s
	c.fresh = append(c.fresh, s)
	c.acquire(s)
	return s
}

// addPeer gives a new peer its class in all sets that name it.
func (c *Compiler) addPeer(d *Identity, p *Plan) {
	matched := map[*Set][]uint32{}
	touch := func(r *rule, match bool) {
		for s := range r.sets {
			if s.Number == 0 {
				continue // it will be built
			}
			if at := s.places[r]; match && !slices.Contains(s.wildcards, at) && !slices.Contains(matched[s], at) {
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
					if s.hosts == sel && s.hostAt >= 0 && s.Number != 0 {
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
				touch(r, slices.ContainsFunc(r.addresses, func(a addressPeer) bool {
					return a.set == m && a.selects(d.base)
				}))
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
		if class, fresh := s.put(d, list, c); class != nil {
			p.Additions = append(p.Additions, Addition{s, d.Number, class, fresh})
		}
	}
}

// removePeer takes a peer out of all sets.
func (c *Compiler) removePeer(d *Identity, p *Plan) {
	for _, s := range c.sets {
		had, last := s.drop(d)
		if had {
			p.ObsoletePeers = append(p.ObsoletePeers, PeerKey{s.Number, d.Number})
		}
		if last != nil {
			c.useProxied(last, -1)
			p.ObsoleteClasses = append(p.ObsoleteClasses, last)
		}
	}
}
