package compile

import (
	"cmp"
	"slices"
	"strings"

	"myelin/policy"
)

// Verdict is what an entry or a row says. The first three are the datapath's
// enum policy_action.
type Verdict uint8

const (
	Denied Verdict = iota
	Allowed
	NoRule // denied, for no rule allowed it
	Passed // not in map entries: continues with the default tier
)

func (r Verdict) String() string { return [...]string{"deny", "allow", "no rule", "pass"}[r] }

// entry is a rule of a set, or what holds where no rule does.
type entry struct {
	rule    *rule // nil: no rule's
	verdict Verdict
	admin   bool // of TierAdmin
	ports   []PortPrefix
	names   []portName // of ports that the peer's pods say, beside ports
}

func (e *entry) id() uint32 {
	if e.rule == nil {
		return 0
	}
	return e.rule.id
}

// sameVerdict reports whether the rows of both are the same.
func (e *entry) sameVerdict(o *entry) bool { return e.verdict == o.verdict && e.id() == o.id() }

// sortRules puts rules in order of precedence: the first that matches decides,
// but for Pass, which leaves out the rest of its tier. The order within a tier
// doesn't change what is allowed where deny beats allow; it determines which rule is named.
func sortRules(rules []*rule) {
	slices.SortFunc(rules, func(a, b *rule) int {
		var inTier int
		if a.spec.Tier == policy.TierDefault {
			inTier = cmp.Compare(a.Action, b.Action)
		} else {
			inTier = cmp.Compare(a.spec.Priority, b.spec.Priority)
		}
		return cmp.Or(
			cmp.Compare(a.spec.Tier, b.spec.Tier), inTier,
			strings.Compare(a.name, b.name),
			cmp.Compare(a.place, b.place),
		)
	})
}

// entries are rules that are in order, with what holds between the tiers and
// after the last one. hostAt is the place of the entry that lets this node
// reach its pods, or -1.
func entries(rules []*rule, isolated, host bool) (list []entry, hostAt int) {
	tier := func(of policy.Tier) {
		for _, r := range rules {
			if r.spec.Tier == of {
				ruling := [...]Verdict{Denied, Allowed, Passed}[r.Action]
				list = append(list, entry{rule: r, verdict: ruling, admin: of == policy.TierAdmin, ports: r.ports,
					names: r.names})
			}
		}
	}
	all := []PortPrefix{{}}
	tier(policy.TierAdmin)
	tier(policy.TierDefault)
	hostAt = -1
	if host {
		hostAt = len(list)
		list = append(list, entry{verdict: Allowed, ports: all})
	}
	if isolated {
		return append(list, entry{verdict: NoRule, ports: all}), hostAt
	}
	tier(policy.TierBaseline)
	return append(list, entry{verdict: Allowed, ports: all}), hostAt
}
