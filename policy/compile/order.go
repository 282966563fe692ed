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
	// proxied: the proxy decides on what the rule allows. open: it lets pass what no rule of HTTP or DNS allows.
	proxied, open bool

	ports []PortPrefix
	names []portName // of ports that the peer's pods say, beside ports
}

func (e *entry) id() uint32 {
	if e.rule == nil {
		return 0
	}
	return e.rule.id
}

// sortRules puts rules in order of precedence: the first that matches decides,
// but for Pass, which leaves out the rest of its tier. The order within a tier
// doesn't change what is allowed where deny beats allow; it determines which rule is named.
func sortRules(rules []*rule) {
	slices.SortFunc(rules, func(a, b *rule) int {
		var inTier int
		if a.spec.Tier == policy.TierDefault {
			inTier = cmp.Or(cmp.Compare(a.Action, b.Action), boolIndex(a.L7 != nil)-boolIndex(b.L7 != nil))
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
// reach its pods, or -1: it comes before rules of the proxy, through which a node's own flows do not pass.
func entries(rules []*rule, isolated, host bool) (list []entry, hostAt int) {
	tier := func(of policy.Tier, proxied bool) {
		for _, r := range rules {
			if r.spec.Tier == of && proxied == (r.L7 != nil) {
				ruling := [...]Verdict{Denied, Allowed, Passed}[r.Action]
				list = append(list, entry{rule: r, verdict: ruling, admin: of == policy.TierAdmin, ports: r.ports,
					names: r.names, proxied: proxied, open: proxied && !isolated})
			}
		}
	}
	all := []PortPrefix{{}}
	tier(policy.TierAdmin, false)
	tier(policy.TierDefault, false)
	hostAt = -1
	if host {
		hostAt = len(list)
		list = append(list, entry{verdict: Allowed, ports: all})
	}
	tier(policy.TierDefault, true)
	if isolated {
		return append(list, entry{verdict: NoRule, ports: all}), hostAt
	}
	tier(policy.TierBaseline, false)
	return append(list, entry{verdict: Allowed, ports: all}), hostAt
}
