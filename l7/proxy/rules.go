package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"myelin/l7/config"
	"myelin/l7/httpproxy"
)

// rules are a configuration, compiled.
type rules struct {
	sets map[uint32]*httpproxy.RuleSet // of rules with parts for HTTP, TLS or nothing
	dns  map[uint32]bool               // rules with a part for DNS
	pods map[netip.Addr]uint16         // slots of the endpoints whose DNS messages pass through the proxy
	// records: requests and messages are recorded.
	records bool
}

// compile compiles a configuration.
func compile(c *config.Config) (*rules, error) {
	r := &rules{sets: map[uint32]*httpproxy.RuleSet{}, dns: map[uint32]bool{}, pods: map[netip.Addr]uint16{},
		records: c.Records}
	secrets := httpproxy.Secrets{}
	for _, s := range c.Secrets {
		secrets[s.SecretRef] = s.Data
	}
	for _, rule := range c.Rules {
		if slices.ContainsFunc(rule.Parts, func(p config.Part) bool { return len(p.L7.DNS) > 0 }) {
			r.dns[rule.Number] = true
			continue
		}
		set, err := httpproxy.Compile(rule, secrets)
		if err != nil {
			return nil, fmt.Errorf("compile rule %d: %w", rule.Number, err)
		}
		r.sets[rule.Number] = set
	}
	for _, e := range c.Endpoints {
		for _, a := range e.Addresses {
			r.pods[a] = e.Slot
		}
	}
	return r, nil
}

// of returns the rule sets of a conntrack entry's rule numbers. Numbers that the configuration does not have are those
// of rules without L7: the agent tells the proxy of a rule before the datapath has it.
func (r *rules) of(numbers [2]uint32) []*httpproxy.RuleSet {
	list := make([]*httpproxy.RuleSet, 0, len(numbers))
	for _, n := range numbers {
		if set := r.sets[n]; set != nil {
			list = append(list, set)
		}
	}
	return list
}

// dnsOf returns the numbers of rules for DNS, 0 for others.
func (r *rules) dnsOf(numbers [2]uint32) [2]uint32 {
	for i, n := range numbers {
		if !r.dns[n] {
			numbers[i] = 0
		}
	}
	return numbers
}

// isDNS reports whether a connection of a pod carries DNS messages to look into.
func (r *rules) isDNS(client, server netip.AddrPort, numbers [2]uint32) bool {
	if r.dnsOf(numbers) != [2]uint32{} {
		return true
	}
	_, ok := r.pods[client.Addr()]
	return ok && server.Port() == dnsPort && len(r.of(numbers)) == 0
}

// slots are a copy of the endpoints' slots by address.
func (r *rules) slots() map[netip.Addr]uint16 { return maps.Clone(r.pods) }
