package policy

// decideTarget finds the sets of one endpoint.
func (c *compiler) decideTarget(t *target) {
	var want [2][2]*set
	if c.config.Mode != ModeNever {
		for dir := range want {
			rules, isolated, decided := c.rulesFor(t.subject, Direction(dir))
			if c.config.Mode == ModeAlways && !t.host || t.unknown && c.enforcing() {
				isolated, decided = true, true
			}
			if decided {
				want[dir] = c.setsFor(t, Direction(dir), rules, isolated)
			}
		}
	}
	if t.awaits(&want) {
		c.hold(t, want)
	} else {
		c.assign(t, want)
	}
}

// loading reports whether a list that the set's rules name is not all known yet.
func (s *set) loading() bool {
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
func (t *target) awaits(next *[2][2]*set) bool {
	for _, of := range next {
		for _, s := range of {
			if s != nil && !t.has(s) && s.loading() {
				return true
			}
		}
	}
	return false
}

// hold lets an endpoint keep its sets until its next ones can be built: half
// of a list must not be in force.
func (c *compiler) hold(t *target, next [2][2]*set) {
	use(&next, 1)
	use(&t.next, -1)
	t.next = next
	c.waiting[t] = struct{}{}
}

// promote gives endpoints their next sets, where all of the lists are known.
func (c *compiler) promote(p *plan) {
	for t := range c.waiting {
		if next := t.next; !t.awaits(&next) {
			c.assign(t, next)
			p.targets[t] = struct{}{}
		}
	}
}

// assign gives an endpoint its sets.
func (c *compiler) assign(t *target, sets [2][2]*set) {
	use(&sets, 1)
	use(&t.sets, -1)
	use(&t.next, -1)
	t.sets, t.next, t.fresh = sets, [2][2]*set{}, false
	delete(c.waiting, t)
}

// use counts who has sets.
func use(sets *[2][2]*set, by int) {
	for _, of := range sets {
		for _, s := range of {
			if s != nil {
				s.users += by
			}
		}
	}
}
