package policy

import (
	"cmp"
	"slices"
	"strings"
)

// ruling is what an entry or a row says. The first three are the datapath's
// enum policy_action.
type ruling uint8

const (
	denied ruling = iota
	allowed
	noRule // denied, for no rule allowed it
	passed // not in rows: asks the default tier
)

func (r ruling) String() string { return [...]string{"deny", "allow", "no rule", "pass"}[r] }

// entry is a rule of a set, or what holds where no rule does.
type entry struct {
	rule   *rule // nil: no rule's
	ruling ruling
	admin  bool // of TierAdmin
	ports  []portPrefix
	names  []portName // of ports that the peer's pods say, beside ports
}

func (e *entry) id() uint32 {
	if e.rule == nil {
		return 0
	}
	return e.rule.id
}

// says reports whether the rows of both are the same.
func (e *entry) says(o *entry) bool { return e.ruling == o.ruling && e.id() == o.id() }

// arrange puts rules in order of precedence: the first that matches decides,
// but for Pass, which leaves out the rest of its tier. The order within a tier
// doesn't change what is allowed where deny beats allow; it says who is named.
func arrange(rules []*rule) {
	slices.SortFunc(rules, func(a, b *rule) int {
		var inTier int
		if a.spec.Tier == TierDefault {
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
	tier := func(of Tier) {
		for _, r := range rules {
			if r.spec.Tier == of {
				ruling := [...]ruling{denied, allowed, passed}[r.Action]
				list = append(list, entry{rule: r, ruling: ruling, admin: of == TierAdmin, ports: r.ports, names: r.names})
			}
		}
	}
	all := []portPrefix{{}}
	tier(TierAdmin)
	tier(TierDefault)
	hostAt = -1
	if host {
		hostAt = len(list)
		list = append(list, entry{ruling: allowed, ports: all})
	}
	if isolated {
		return append(list, entry{ruling: noRule, ports: all}), hostAt
	}
	tier(TierBaseline)
	return append(list, entry{ruling: allowed, ports: all}), hostAt
}
