package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"myelin/policy"
)

// String is the answer as people read it.
func (t *Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", strings.ToUpper(t.Verdict))
	for i := range t.Ways {
		t.Ways[i].write(&b)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

func (w *Way) write(b io.Writer) {
	fmt.Fprintf(b, "%s → %s %s: %s\n", w.Source, w.Destination, w.Port, w.Verdict)
	w.Egress.write(b, policy.Egress, w.Source)
	w.Ingress.write(b, policy.Ingress, w.Destination)
}

func (s *Side) write(b io.Writer, dir policy.Direction, of Party) {
	at := ""
	if of.Node != "" {
		at = " (" + of.Node + ")"
	}
	fmt.Fprintf(b, "  %s of %s%s: %s\n", dir, of.Name, at, s.Why)
	for _, text := range s.Policies {
		fmt.Fprintf(b, "    %s\n", text)
	}
	if s.Problem != "" {
		fmt.Fprintf(b, "    but not all of it is in the kernel: %s\n", s.Problem)
	}
	if s.Audit && !s.Allowed() {
		fmt.Fprintf(b, "    audit: it goes on all the same\n")
	}
	for _, c := range s.Rules {
		fmt.Fprintf(b, "    looked at %s (%s, %s): %s\n", c.Origin, c.Action, c.Tier, s.match(&c))
		for _, text := range c.Unenforced {
			fmt.Fprintf(b, "      not enforced: %s\n", text)
		}
	}
	if len(s.Change) > 0 && s.Enforced {
		what := map[bool]string{true: "to deny it, all of", false: "to allow it, one of"}[s.Allowed() && !s.Refused]
		fmt.Fprintf(b, "    %s:\n", what)
		for _, c := range s.Change {
			fmt.Fprintf(b, "      %s\n", c)
		}
	}
}

// match says how far a rule matches the flow.
func (s *Side) match(c *Considered) string {
	switch {
	case len(c.Unenforced) > 0 && c.Action != policy.Deny && !c.Peer:
		return "matches nothing, for not all of it is enforced"
	case slices.ContainsFunc(s.Proxied, func(p Considered) bool { return p.ID == c.ID }):
		return "the proxy enforces it: " + c.L7.String()
	case s.Rule != nil && s.Rule.ID == c.ID:
		return "decides"
	case c.Peer && c.Ports && c.Action == policy.Pass:
		return "hands on to the next tier"
	case c.Peer && c.Ports:
		return "matches, after the one that decides"
	case c.Peer:
		return "the peer, but another port"
	case c.Ports:
		return "the port, but another peer"
	}
	return "another peer and port"
}
