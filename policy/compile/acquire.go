package compile

import (
	"maps"

	"myelin/policy"
)

// acquire activates the rules of a set: their peers are selected from the
// first set on.
func (c *Compiler) acquire(s *Set) {
	for i := range s.entries {
		r := s.entries[i].rule
		if r == nil {
			continue
		}
		if len(r.sets) == 0 {
			c.activate(r)
		}
		r.sets[s] = struct{}{}
	}
	if s.hostAt >= 0 {
		s.hosts = c.peers.selectors.use(hostSelector(), nil)
	}
}

// hostSelector selects this node.
func hostSelector() policy.Selector {
	return policy.Selector{{Source: "reserved", Key: "host", Op: policy.Exists}}
}

// remoteSelector selects all other nodes.
func remoteSelector() policy.Selector {
	return policy.Selector{{Source: "reserved", Key: "remote-node", Op: policy.Exists}}
}

func (c *Compiler) activate(r *rule) {
	for _, sel := range r.peers.selectors {
		r.selections = append(r.selections, c.peers.selectors.use(sel, r))
	}
	for _, a := range r.peers.addresses {
		p := addressPeer{set: c.space.useSet(a.source, r, c.fill)}
		if len(a.required) > 0 {
			p.required = c.peers.selectors.use(a.required, r)
		}
		r.addresses = append(r.addresses, p)
	}
	if r.Direction == policy.Egress {
		for _, n := range r.names {
			r.named = append(r.named, c.useName(n, r))
		}
	}
}

// refill gives the rule's address sets what the rule says of them now: it is
// the same but for what is in long lists.
func (c *Compiler) refill(r *rule) {
	maps.DeleteFunc(r.variants, func(_ string, v *rule) bool { return len(v.sets) == 0 })
	if len(r.sets) == 0 && len(r.variants) == 0 {
		return
	}
	for _, a := range r.peers.addresses {
		if set := c.space.bySet[a.source.key]; set != nil {
			set.source.include, set.source.except = a.source.include, a.source.except
			c.fill(set)
		}
	}
}

// release undoes acquire.
func (c *Compiler) release(s *Set) {
	for i := range s.entries {
		r := s.entries[i].rule
		if r == nil {
			continue
		}
		if delete(r.sets, s); len(r.sets) == 0 {
			c.deactivate(r)
		}
	}
}

func (c *Compiler) deactivate(r *rule) {
	selectors := c.peers.selectors
	for _, sel := range r.selections {
		selectors.release(sel, r)
	}
	for _, a := range r.addresses {
		c.space.releaseSet(a.set, r)
		c.releaseNames(a.set)
		if a.required != nil {
			selectors.release(a.required, r)
		}
	}
	for _, n := range r.named {
		c.releaseName(n, r)
	}
	r.selections, r.addresses, r.named = nil, nil, nil
}
