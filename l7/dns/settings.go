package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"myelin/l7/config"
	"myelin/l7/dns/pattern"
)

// settings are a configuration, compiled. They do not change.
type settings struct {
	index      *pattern.Index
	selectors  []config.Selector // those of index
	rules      map[uint32]*ruleSet
	endpoints  map[netip.Addr]*endpoint
	minTTL     uint64 // nanoseconds
	perName    int
	grace      uint64 // nanoseconds
	rejectCode uint8
	records    bool
	pass       bool // messages may pass without the engine
}

// ruleSet is what a rule of the configuration says about queries.
type ruleSet struct {
	all bool // a part allows everything
	set pattern.Set
}

func newSettings(c *config.Config) *settings {
	s := &settings{
		index: &pattern.Index{}, rules: map[uint32]*ruleSet{}, endpoints: map[netip.Addr]*endpoint{},
		minTTL: uint64(max(c.DNS.MinTTL, 0)), perName: c.DNS.MaxAddressesPerName,
		grace: uint64(max(c.DNS.IdleConnectionGracePeriod, 0)), rejectCode: uint8(c.DNS.RejectCode & 15),
		records: c.Records, pass: c.DNS.Cache,
	}
	if s.perName <= 0 {
		s.perName = defaultAddressesPerName
	}
	if s.rejectCode == 0 {
		s.rejectCode = refusedCode
	}
	return s
}

// refusedCode is REFUSED, for a configuration without a code: a refusal never looks like success.
const refusedCode = 5

// compile adds rules and selectors. A pattern that is not valid matches nothing, and is a part of the error.
func (s *settings) compile(c *config.Config, before *settings) error {
	var errs []error
	for _, r := range c.Rules {
		set := &ruleSet{}
		for _, part := range r.Parts {
			l7 := &part.L7
			if len(l7.DNS) == 0 && len(l7.HTTP) == 0 && len(l7.ServerNames) == 0 {
				set.all = true
			}
			for _, n := range l7.DNS {
				p, err := pattern.Compile(n)
				if err != nil {
					errs = append(errs, fmt.Errorf("rules.dns of %s: %w", part.Origin, err))
					continue
				}
				set.set.Add(p)
			}
		}
		s.rules[r.Number] = set
	}
	if same(c.Selectors, before.selectors) {
		s.index, s.selectors = before.index, before.selectors
		return errors.Join(errs...)
	}
	for _, selector := range c.Selectors {
		s.selectors = append(s.selectors, config.Selector{Number: selector.Number, Names: slices.Clone(selector.Names)})
		for _, n := range selector.Names {
			p, err := pattern.Compile(n)
			if err != nil {
				errs = append(errs, fmt.Errorf("selector %d: %w", selector.Number, err))
				continue
			}
			s.index.Add(p, selector.Number)
		}
	}
	return errors.Join(errs...)
}

func same(a, b []config.Selector) bool {
	return slices.EqualFunc(a, b, func(a, b config.Selector) bool {
		return a.Number == b.Number && slices.Equal(a.Names, b.Names)
	})
}

// match appends the numbers of all selectors that a name matches, sorted, each once.
func (s *settings) match(numbers []uint32, name []byte) []uint32 {
	numbers = s.index.Append(numbers, name)
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// applied are the rules that apply to a flow.
type applied struct {
	sets    [2]*ruleSet
	unknown bool
	epoch   uint32
}

// rules finds the rules of a flow.
func (e *Engine) rules(s *settings, f *flow) applied {
	var a applied
	applying := e.Rules(f.client, f.server, f.proto)
	a.epoch = applying.Epoch
	for i, number := range applying.Numbers {
		if number == 0 {
			continue
		}
		a.sets[i] = s.rules[number]
		a.unknown = a.unknown || a.sets[i] == nil
	}
	return a
}

// apply reports whether the rules could refuse a query.
func (a applied) apply() bool {
	if a.unknown {
		return true
	}
	for _, set := range a.sets {
		if set != nil && !set.all {
			return true
		}
	}
	return false
}

// match reports whether all rules allow a question.
func (a applied) match(name []byte) bool {
	if a.unknown {
		return false
	}
	for _, set := range a.sets {
		if set != nil && !set.all && !set.set.Match(name) {
			return false
		}
	}
	return true
}

// seconds is a TTL in nanoseconds.
func seconds(ttl uint32) uint64 { return uint64(ttl) * uint64(time.Second) }
