package event

import (
	"net/netip"
	"strconv"
	"strings"

	"myelin/bpf"
)

// Policies know what decides about flows. Names that implement it are asked for
// rules; without, rules have numbers alone.
type Policies interface {
	// Rule is a rule's object and the place in it, empty for a number that no
	// rule has any more.
	Rule(number uint32) string
	// Isolating are the policies by which the endpoint with an address is denied
	// what no rule allows.
	Isolating(of netip.Addr, egress bool) []string
}

// Rules are those that decided about a flow, by the end that they are of: the
// destination's of ingress, the source's of egress; empty where none did.
type Rules struct {
	Ingress string `json:"ingress,omitempty"`
	Egress  string `json:"egress,omitempty"`
}

// String is "ingress by …; egress by …", empty where no rule matched.
func (r Rules) String() string {
	var parts []string
	if r.Ingress != "" {
		parts = append(parts, "ingress by "+r.Ingress)
	}
	if r.Egress != "" {
		parts = append(parts, "egress by "+r.Egress)
	}
	return strings.Join(parts, "; ")
}

// RulesOf names the numbers that the datapath keeps, by direction; 0 is none.
func RulesOf(names Names, numbers [2]uint32) Rules {
	return Rules{RuleName(names, numbers[bpf.DatapathPolicyDirectionPOLICY_INGRESS]),
		RuleName(names, numbers[bpf.DatapathPolicyDirectionPOLICY_EGRESS])}
}

// RuleName is a rule's object and place, or its number if it is no more; empty
// for 0, which is none.
func RuleName(names Names, number uint32) string {
	if number == 0 {
		return ""
	}
	if p, ok := names.(Policies); ok {
		if name := p.Rule(number); name != "" {
			return name
		}
	}
	return "rule " + strconv.FormatUint(uint64(number), 10) + ", which is no more"
}

// addRules adds the policy rules.
func (d *Decoder) addRules(e *Event, r *Raw) {
	e.Rules = RulesOf(d.Names, r.Rule)
	if r.Denied == 0 {
		return
	}
	egress := bpf.DatapathPolicyDirection(r.Denied-1) == bpf.DatapathPolicyDirectionPOLICY_EGRESS
	rule := e.Rules.Ingress
	if e.Denied = "ingress"; egress {
		e.Denied, rule = "egress", e.Rules.Egress
	}
	audited := r.Flags&uint16(bpf.DatapathEventFlagEVENT_AUDIT) != 0 // the event has no outcome
	switch o := bpf.DatapathOutcome(r.Outcome); {
	case o == bpf.DatapathOutcomeDROP_POLICY_DENIED, audited && rule != "":
		e.Policy = e.Denied + " denied by " + rule
	case o == bpf.DatapathOutcomeDROP_POLICY_NO_RULE, audited:
		e.Policy = "no rule allowed " + e.Denied
		if by := d.isolating(e, egress); len(by) > 0 {
			e.Policy += ": isolated by " + strings.Join(by, ", ")
		}
	}
}

// isolating looks up the policies of the end that was checked. A packet may be an answer: then its
// ends are the other way round than the flow's.
func (d *Decoder) isolating(e *Event, egress bool) []string {
	p, ok := d.Names.(Policies)
	if !ok {
		return nil
	}
	first, second := e.Dst.Addr, e.Src.Addr
	if egress {
		first, second = second, first
	}
	if by := p.Isolating(first, egress); len(by) > 0 {
		return by
	}
	return p.Isolating(second, egress)
}
