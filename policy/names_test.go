package policy_test

import (
	"testing"

	"myelin/policy"
)

// Patterns match as Cilium's matchPattern does.
func TestNameMatches(t *testing.T) {
	for _, c := range []struct {
		pattern policy.NamePattern
		yes, no []string
	}{
		{policy.NamePattern{Name: "a.example"}, []string{"a.example", "A.Example."},
			[]string{"b.a.example", "aXexample"}},
		{policy.NamePattern{Pattern: "*"}, []string{"a", "a.b.c.", ""}, []string{"a..b", "a b"}},
		{policy.NamePattern{Pattern: "**"}, []string{"a", "a.b.c"}, nil},
		{policy.NamePattern{Pattern: "*.example"}, []string{"a.example", "_a-b.EXAMPLE"},
			[]string{"example", "a.b.example", "a.examples"}},
		{policy.NamePattern{Pattern: "*example"}, []string{"example", "anexample"}, []string{"an.example"}},
		{policy.NamePattern{Pattern: "**.example"}, []string{"a.example", "a.b.example"},
			[]string{"example", "b.examples"}},
		{policy.NamePattern{Pattern: "a**b.c"}, []string{"ab.c", "axxb.c"}, []string{"a.b.c"}},
		{policy.NamePattern{Pattern: "a.**.c"}, []string{"a.b.c", "a..c"}, []string{"a.b.b.c"}},
		{policy.NamePattern{}, nil, []string{"", "a"}},
	} {
		for _, name := range c.yes {
			if !c.pattern.Matches(name) {
				t.Errorf("%q doesn't match %q", c.pattern, name)
			}
		}
		for _, name := range c.no {
			if c.pattern.Matches(name) {
				t.Errorf("%q matches %q", c.pattern, name)
			}
		}
	}
	l7 := policy.L7{ServerNames: []string{"a.example", "*.b"}}
	if !l7.MatchesServerName("A.example") || !l7.MatchesServerName("x.b") || l7.MatchesServerName("x.y.b") {
		t.Error("server names match otherwise")
	}
}

// What needs the proxy is closed without one, and says why; the specs given stay as they are.
func TestWithoutProxy(t *testing.T) {
	names := []policy.NamePattern{{Name: "a"}}
	sel := policy.Selector{}
	rules := []policy.Rule{
		{Ports: []policy.Port{{Proto: 6}}, L7: &policy.L7{DNS: names}},
		{Peers: []policy.Peer{{Names: names}}},
		{Peers: []policy.Peer{{Names: names}, {Endpoints: &sel}}},
		{Peers: []policy.Peer{{Endpoints: &sel}}},
	}
	given := []policy.Spec{{Rules: rules}}
	got := policy.WithoutProxy(given, "because")[0].Rules
	for i, peers := range []int{0, 0, 1, 1} {
		r := &got[i]
		if r.Peers == nil || len(r.Peers) != peers || r.NeedsProxy() || (i < 3) != (len(r.Unenforced) == 1) {
			t.Errorf("rule %d is %s, %q", i, r, r.Unenforced)
		}
	}
	if !rules[0].NeedsProxy() || len(rules[2].Peers) != 2 || rules[2].Peers[0].Names == nil {
		t.Error("the specs given were changed")
	}
	if same := policy.WithoutProxy(given[:1:1], ""); &same[0] == &given[0] {
		t.Error("nothing was closed")
	}
}
