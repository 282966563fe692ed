package policy

import (
	"fmt"
	"slices"
	"strings"
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
func (e *Engine) Lines(slot uint16) ([]Line, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.compiler.targets[slot]
	if t == nil {
		return nil, fmt.Errorf("endpoint %d has no policies: there is none", slot)
	}
	var out []Line
	for dir, of := range t.sets {
		for family, s := range of {
			if s == nil || s.number == 0 || family == 1 && of[0] == s {
				continue
			}
			name := [...]string{"IPv4", "IPv6"}[family]
			if of[0] == of[1] {
				name = ""
			}
			out = e.lines(out, Line{Direction: Direction(dir), Family: name}, s.rest)
			for _, d := range s.inOrder() {
				out = e.lines(out, Line{Direction: Direction(dir), Family: name, Identity: d.number, Labels: d.describe()}, s.peers[d])
			}
		}
	}
	return out, nil
}

func (e *Engine) lines(out []Line, like Line, c *class) []Line {
	for _, r := range c.rows {
		l := like
		l.Proto, l.First, l.Last = r.proto, r.port, r.port|uint16(1<<(16-r.bits)-1)
		l.Action, l.Rule = r.ruling.String(), r.rule
		l.Hits, l.LastTick = e.Kernel.hits(c.number, r.portPrefix)
		out = append(out, l)
	}
	return out
}

// inOrder are the peers of a set that have rows, by number.
func (s *set) inOrder() []*peerID {
	out := make([]*peerID, 0, len(s.peers))
	for d := range s.peers {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *peerID) int { return int(int64(a.number) - int64(b.number)) })
	return out
}

// describe is who a peer is, as text.
func (d *peerID) describe() (out []string) {
	out = d.base.labels.texts()
	for _, m := range d.members {
		out = append(out, "in "+strings.TrimSpace(m.source.key))
	}
	return out
}
