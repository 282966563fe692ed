package policy

// Explainer answers questions about the policies that an engine enforces.
type Explainer struct{ engine *Engine }

// NewExplainer creates one for an engine.
func NewExplainer(e *Engine) *Explainer { return &Explainer{e} }

// Isolating are the policies by which the endpoint in a slot is denied what no
// rule allows in a direction, sorted; none where there is no such endpoint.
func (x *Explainer) Isolating(slot uint16, dir Direction) (list []string) {
	x.engine.View(func(c *compiler) { list = c.isolating(slot, dir) })
	return list
}
