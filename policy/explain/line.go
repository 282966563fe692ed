package explain

import (
	"fmt"

	"myelin/policy"
	"myelin/policy/compile"
)

// Line is a row of the kernel as people read it.
type Line struct {
	Direction policy.Direction `json:"direction"`
	// Family is "IPv4", "IPv6", or empty for both.
	Family string `json:"family,omitempty"`
	// Identity is the peer's, 0 for all peers without a line of their own; Labels are its
	// labels, and the address sets that it is in.
	Identity uint32   `json:"identity"`
	Labels   []string `json:"labels,omitempty"`
	// Proto, First and Last are what the line covers where no later one does.
	Proto  uint8  `json:"proto"`
	First  uint16 `json:"first"`
	Last   uint16 `json:"last"`
	Action string `json:"action"`
	// Rule is the number of the rule that decides; 0: none does.
	Rule uint32 `json:"rule"`
	// Hits are flows that the line decided, and LastTick is when it decided the
	// last one: tick of the datapath's clock, 0: never. Peers that are alike
	// share them.
	Hits     uint64 `json:"hits"`
	LastTick uint64 `json:"-"`
}

// Lines are the rows that an endpoint has in the kernel. It is an error if
// there is no such endpoint.
func (x *Explainer) Lines(slot uint16) (out []Line, err error) {
	x.engine.View(func(c *compile.Compiler) {
		if t := c.Endpoint(slot); t != nil {
			out = x.linesOf(t)
		} else {
			err = fmt.Errorf("endpoint %d has no policies: there is none", slot)
		}
	})
	return out, err
}

func (x *Explainer) linesOf(t *compile.Endpoint) (out []Line) {
	for dir, of := range t.Sets {
		for family, s := range of {
			if s == nil || s.Number == 0 || family == 1 && of[0] == s {
				continue
			}
			name := [...]string{"IPv4", "IPv6"}[family]
			if of[0] == of[1] {
				name = ""
			}
			out = x.lines(out, Line{Direction: policy.Direction(dir), Family: name}, s.Default)
			for _, d := range s.SortedPeers() {
				out = x.lines(out, Line{Direction: policy.Direction(dir), Family: name, Identity: d.Number,
					Labels: d.Describe()}, s.Peers[d])
			}
		}
	}
	return out
}

func (x *Explainer) lines(out []Line, like Line, c *compile.Class) []Line {
	for _, r := range c.Verdicts {
		l := like
		l.Proto, l.First, l.Last = r.Proto, r.Port, r.Port|uint16(1<<(16-r.Bits)-1)
		l.Action, l.Rule = r.Verdict.String(), r.Rule
		l.Hits, l.LastTick = x.engine.Maps.Hits(c.Number, r.PortPrefix)
		out = append(out, l)
	}
	return out
}
