package policy

import (
	"maps"
	"slices"
)

// Isolating are the policies by which the endpoint in a slot is denied what no
// rule allows in a direction, sorted; none where there is no such endpoint.
func (e *Engine) Isolating(slot uint16, dir Direction) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.compiler.targets[slot]; t != nil {
		return e.compiler.isolating(t.subject, dir, t.host)
	}
	return nil
}

func (c *compiler) isolating(s *subject, dir Direction, host bool) []string {
	by := map[string]bool{}
	for _, chosen := range s.by {
		for spec := range chosen.users {
			if spec.Tier == TierDefault && spec.Isolates[dir] {
				by[spec.Ref.String()] = true
			}
		}
	}
	if len(by) == 0 && c.config.Mode == ModeAlways && !host {
		return []string{"policyEnforcementMode: always"}
	}
	return slices.Sorted(maps.Keys(by))
}
