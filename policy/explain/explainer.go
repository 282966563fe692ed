// Package explain answers questions about policies: which rule decides a flow, what an edit would change, what each
// rule does on this node, and what was denied.
package explain

import (
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/engine"
)

// Explainer answers questions about the policies that an engine enforces.
type Explainer struct{ engine *engine.Engine }

// New creates one for an engine.
func New(e *engine.Engine) *Explainer { return &Explainer{e} }

// Isolating are the policies by which the endpoint in a slot is denied what no
// rule allows in a direction, sorted; none where there is no such endpoint.
func (x *Explainer) Isolating(slot uint16, dir policy.Direction) (list []string) {
	x.engine.View(func(c *compile.Compiler) { list = c.Isolating(slot, dir) })
	return list
}
