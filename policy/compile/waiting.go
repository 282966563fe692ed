package compile

import "myelin/policy"

// assignSets finds the sets of one endpoint.
func (c *Compiler) assignSets(t *Endpoint) {
	var want [2][2]*Set
	if c.Config.Mode != policy.ModeNever {
		for dir := range want {
			rules, isolated, decided := c.rulesFor(t.subject, policy.Direction(dir))
			if c.Config.Mode == policy.ModeAlways && !t.host || t.Unknown && c.Enforcing() {
				isolated, decided = true, true
			}
			if decided {
				want[dir] = c.setsFor(t, policy.Direction(dir), rules, isolated)
			}
		}
	}
	if t.awaits(&want) {
		c.keepWaiting(t, want)
	} else {
		c.assign(t, want)
	}
}

// loading reports whether a list that the set's rules name is not all known yet.
func (s *Set) loading() bool {
	for i := range s.entries {
		if r := s.entries[i].rule; r != nil {
			for _, a := range r.addresses {
				if a.set.backlog != nil {
					return true
				}
			}
		}
	}
	return false
}

// awaits reports whether the endpoint can't have its next sets yet.
func (t *Endpoint) awaits(next *[2][2]*Set) bool {
	for _, of := range next {
		for _, s := range of {
			if s != nil && !t.has(s) && s.loading() {
				return true
			}
		}
	}
	return false
}

// keepWaiting lets an endpoint keep its sets until its next ones can be built: half
// of a list must not be in force.
func (c *Compiler) keepWaiting(t *Endpoint, next [2][2]*Set) {
	use(&next, 1)
	use(&t.next, -1)
	t.next = next
	c.waiting[t] = struct{}{}
}

// assignWaiting gives endpoints their next sets, where all of the lists are known.
func (c *Compiler) assignWaiting(p *Plan) {
	for t := range c.waiting {
		if next := t.next; !t.awaits(&next) {
			c.assign(t, next)
			p.Endpoints[t] = struct{}{}
		}
	}
}

// assign gives an endpoint its sets.
func (c *Compiler) assign(t *Endpoint, sets [2][2]*Set) {
	use(&sets, 1)
	use(&t.Sets, -1)
	use(&t.next, -1)
	t.Sets, t.next, t.New = sets, [2][2]*Set{}, false
	delete(c.waiting, t)
}

// use counts the endpoints that have sets.
func use(sets *[2][2]*Set, by int) {
	for _, of := range sets {
		for _, s := range of {
			if s != nil {
				s.users += by
			}
		}
	}
}
