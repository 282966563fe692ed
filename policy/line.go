package policy

import (
	"fmt"
)

// Line is a row of the kernel as people read it.
type Line struct {
	Direction Direction `json:"direction"`
	// Family is "IPv4", "IPv6", or empty for both.
	Family string `json:"family,omitempty"`
	// Identity is the peer's, 0 for everybody who has no line; Labels are its
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
	x.engine.View(func(c *compiler) {
		if t := c.target(slot); t != nil {
			out = x.linesOf(t)
		} else {
			err = fmt.Errorf("endpoint %d has no policies: there is none", slot)
		}
	})
	return out, err
}

func (x *Explainer) linesOf(t *target) (out []Line) {
	for dir, of := range t.sets {
		for family, s := range of {
			if s == nil || s.number == 0 || family == 1 && of[0] == s {
				continue
			}
			name := [...]string{"IPv4", "IPv6"}[family]
			if of[0] == of[1] {
				name = ""
			}
			out = x.lines(out, Line{Direction: Direction(dir), Family: name}, s.rest)
			for _, d := range s.peersInOrder() {
				out = x.lines(out, Line{Direction: Direction(dir), Family: name, Identity: d.number, Labels: d.describe()}, s.peers[d])
			}
		}
	}
	return out
}

func (x *Explainer) lines(out []Line, like Line, c *class) []Line {
	for _, r := range c.rows {
		l := like
		l.Proto, l.First, l.Last = r.proto, r.port, r.port|uint16(1<<(16-r.bits)-1)
		l.Action, l.Rule = r.ruling.String(), r.rule
		l.Hits, l.LastTick = x.engine.Kernel.hits(c.number, r.portPrefix)
		out = append(out, l)
	}
	return out
}
