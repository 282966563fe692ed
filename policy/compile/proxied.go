package compile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// proxied is the number of a rule that the proxy enforces, or of several that it enforces together, because they allow
// the same flows.
type proxied struct {
	number uint32
	key    LedgerKey // of the number; empty if that is the only rule's own
	rules  []*rule   // each once, sorted by key
	open   bool      // as in entry
	// classes are how many classes have the number. It is kept for a while after the last one: flows still have it.
	classes int
	retired time.Time
}

// proxiedNumbers are all that there are.
type proxiedNumbers struct {
	byNumber map[uint32]*proxied
	byKey    map[LedgerKey]*proxied
}

// proxiedOf describes the rules of entries. Its number is known if that is a rule's own.
func proxiedOf(list []*entry) *proxied {
	p := &proxied{}
	seen := map[uint32]bool{}
	for _, e := range list {
		if !seen[e.rule.id] {
			seen[e.rule.id] = true
			p.rules = append(p.rules, e.rule)
			p.open = p.open || e.open && len(e.rule.L7.HTTP)+len(e.rule.L7.DNS) > 0
		}
	}
	slices.SortFunc(p.rules, func(a, b *rule) int { return cmp.Compare(a.key, b.key) })
	if len(p.rules) == 1 && !p.open {
		p.number = p.rules[0].id
		return p
	}
	keys := make([]string, len(p.rules))
	for i, r := range p.rules {
		keys[i] = string(r.key)
	}
	p.key = LedgerKey("proxied " + hash128(strings.Join(keys, "\x03")))
	if p.open {
		p.key += " open"
	}
	return p
}

// proxiedNumber is the number that the rules of entries have together.
func (c *Compiler) proxiedNumber(list []*entry) uint32 {
	p := proxiedOf(list)
	if p.key != "" {
		if known := c.proxied.byKey[p.key]; known != nil {
			known.rules = p.rules
			return known.number
		}
		p.number = c.rules.Get(p.key)
		c.proxied.byKey[p.key] = p
		c.changed[p.number] = p.row()
	}
	if known := c.proxied.byNumber[p.number]; known != nil {
		known.rules = p.rules
		return p.number
	}
	c.proxied.byNumber[p.number] = p
	return p.number
}

// knownNumber is the same where nothing must be changed: 0 if the rules have no number together.
func (c *Compiler) knownNumber(list []*entry) uint32 {
	if c.Shadow {
		return c.proxiedNumber(list)
	}
	p := proxiedOf(list)
	if known := c.proxied.byKey[p.key]; p.key != "" && known != nil {
		return known.number
	}
	return p.number
}

// useProxied counts the classes that have numbers of the proxy.
func (c *Compiler) useProxied(class *Class, by int) {
	for _, v := range class.Verdicts {
		if v.Proxy {
			c.proxied.byNumber[v.Rule].classes += by
		}
	}
}

// renameProxied is told that a rule has another origin.
func (c *Compiler) renameProxied(r *rule) {
	for _, p := range c.proxied.byKey {
		if i := slices.IndexFunc(p.rules, func(o *rule) bool { return o.id == r.id }); i >= 0 {
			p.rules[i] = r
			c.changed[p.number] = p.row()
		}
	}
}

// row is the numbers' row of the table of rules.
func (p *proxied) row() *policy.RuleRow {
	row := p.rules[0].Row()
	row.ID = p.number
	for _, r := range p.rules[1:] {
		row.Others = append(row.Others, r.Origin)
	}
	return row
}

// proxiedGrace is how long a number is kept after the last verdict that had it.
const proxiedGrace = time.Minute

// ProxyRules are the rules of each number that flows through the proxy may have, sorted by number: those in use, and
// those that were until less than a minute ago. next is when one of the latter goes; zero: there is none.
func (c *Compiler) ProxyRules(now time.Time) (rules []config.Rule, next time.Duration) {
	for _, number := range slices.Sorted(maps.Keys(c.proxied.byNumber)) {
		p := c.proxied.byNumber[number]
		switch {
		case p.classes > 0:
			p.retired = time.Time{}
		case p.retired.IsZero():
			p.retired = now
		case now.Sub(p.retired) >= proxiedGrace:
			c.forgetProxied(p)
			continue
		}
		if left := proxiedGrace - now.Sub(p.retired); p.classes == 0 && (next == 0 || left < next) {
			next = left
		}
		rules = append(rules, config.Rule{Number: number, Parts: p.parts()})
	}
	return rules, next
}

func (c *Compiler) forgetProxied(p *proxied) {
	delete(c.proxied.byNumber, p.number)
	if p.key != "" {
		delete(c.proxied.byKey, p.key)
		c.rules.Release(p.key)
		c.changed[p.number] = nil
	}
}

// parts are what of the rules the proxy must know. Where what no rule allows is not denied, each rule of HTTP or DNS
// has a second part without.
func (p *proxied) parts() (out []config.Part) {
	for _, r := range p.rules {
		out = append(out, config.Part{Origin: r.Origin, L7: *r.L7})
	}
	if !p.open {
		return out
	}
	for _, r := range p.rules {
		if len(r.L7.HTTP)+len(r.L7.DNS) > 0 {
			l7 := *r.L7
			l7.HTTP, l7.DNS = nil, nil
			out = append(out, config.Part{Origin: r.Origin, L7: l7})
		}
	}
	return out
}

// ProxyParts are the parts of a number; nil: the proxy has none of that number.
func (c *Compiler) ProxyParts(number uint32) []config.Part {
	if p := c.proxied.byNumber[number]; p != nil {
		return p.parts()
	}
	return nil
}
