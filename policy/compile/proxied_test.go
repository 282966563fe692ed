package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/test/policy/scene"
)

// proxyCase is policies of one pod, at port 80 of which another pod and the node arrive.
type proxyCase struct {
	name  string
	rules string // as in "a deny b"
	// fromPod and fromHost are what the proxy enforces, "plain", or a verdict that denies.
	fromPod, fromHost string
}

// newProxied is a compiler with a pod at slot 10, another pod and the node.
func newProxied(t *testing.T) *compile.Compiler {
	t.Helper()
	c := compile.New(policy.Config{Proxy: true}, scene.NewNumbers(t, compile.FirstDerived-1), scene.NewNumbers(t, 0))
	c.Identify(identity.Host, []string{"reserved:host"})
	c.SetAddress(netip.MustParseAddr("172.16.0.1"), identity.Host)
	c.Identify(identity.First, []string{"k8s:app=client"})
	c.SetAddress(netip.MustParseAddr("10.0.0.2"), identity.First)
	c.SetEndpoint(10, []string{"k8s:app=server"}, nil, false, false)
	return c
}

// proxyRule is one word of a case: "deny", "plain", "open" or a path of HTTP, "@" before it for the client alone.
func proxyRule(spec *policy.Spec, word string) {
	r := policy.Rule{Origin: policy.Origin{Ref: spec.Ref, Path: word}, Action: policy.Allow,
		Ports: []policy.Port{{Proto: policy.ProtoTCP, First: 80, Last: 80}}}
	kind, alone := strings.CutPrefix(word, "@")
	if alone {
		client := policy.Selector{{Source: "k8s", Key: "app", Op: policy.In, Values: []string{"client"}}}
		r.Peers = []policy.Peer{{Endpoints: &client}}
	}
	switch kind {
	case "open":
		spec.Isolates = [2]bool{}
		return
	case "wide":
		r.Ports[0].First, r.L7 = 1, &policy.L7{HTTP: []policy.HTTPRule{{Path: "wide"}}}
	case "deny":
		r.Action = policy.Deny
	case "plain":
	default:
		r.L7 = &policy.L7{HTTP: []policy.HTTPRule{{Path: kind}}}
	}
	spec.Rules = append(spec.Rules, r)
}

// enforced is what the proxy enforces on flows of an address to port 80, "plain", or the verdict.
func enforced(c *compile.Compiler, from string) string {
	v := c.Lookup(10, policy.Ingress, netip.MustParseAddr(from), policy.ProtoTCP, 80)
	switch {
	case v.Verdict != compile.Allowed:
		return v.Verdict.String()
	case !v.Proxy:
		return "plain"
	}
	var out []string
	for _, p := range c.ProxyParts(v.Rule) {
		if len(p.L7.HTTP) == 0 {
			out = append(out, "all")
			continue
		}
		out = append(out, p.L7.HTTP[0].Path)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Deny beats all, a rule without the proxy those with it, and of the latter all that match count together.
func TestProxied(t *testing.T) {
	for _, w := range []proxyCase{
		{"one", "/a", "/a", "plain"},
		{"two", "/a /b", "/a /b", "plain"},
		{"a range", "wide /b", "/b wide", "plain"},
		{"deny", "/a deny", "deny", "deny"},
		{"plain", "/a plain", "plain", "plain"},
		{"plain for one", "/a @plain", "plain", "plain"},
		{"for one", "@/a /b", "/a /b", "plain"},
		{"for one alone", "@/a", "/a", "plain"},
		{"not isolated", "/a open", "/a all", "plain"},
		{"the same twice", "/a /a", "/a /a", "plain"},
	} {
		t.Run(w.name, func(t *testing.T) {
			c := newProxied(t)
			for _, word := range strings.Fields(w.rules) {
				if word == "open" {
					continue
				}
				ref := policy.Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Name: word}}
				spec := policy.Spec{Ref: ref, Tier: policy.TierDefault,
					Isolates: [2]bool{!strings.Contains(w.rules, "open"), false}}
				for range strings.Count(w.rules, word) {
					proxyRule(&spec, word)
				}
				c.SetPolicy(ref, []policy.Spec{spec})
			}
			flushAll(c)
			if got := enforced(c, "10.0.0.2"); got != w.fromPod {
				t.Errorf("from the pod: %s, want %s", got, w.fromPod)
			}
			if got := enforced(c, "172.16.0.1"); got != w.fromHost {
				t.Errorf("from the node: %s, want %s", got, w.fromHost)
			}
		})
	}
}

// A number that no verdict has any more is kept for a minute, and then goes.
func TestProxiedRetires(t *testing.T) {
	c := newProxied(t)
	ref := policy.Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Name: "p"}}
	spec := policy.Spec{Ref: ref, Tier: policy.TierDefault, Isolates: [2]bool{true, false}}
	proxyRule(&spec, "/a")
	proxyRule(&spec, "/b")
	c.SetPolicy(ref, []policy.Spec{spec})
	flushAll(c)
	now := time.Unix(1000, 0)
	rules, next := c.ProxyRules(now)
	number := c.Lookup(10, policy.Ingress, netip.MustParseAddr("10.0.0.2"), policy.ProtoTCP, 80).Rule
	if len(rules) != 1 || rules[0].Number != number || len(rules[0].Parts) != 2 || next != 0 {
		t.Fatalf("the proxy has %+v, next in %s; the number is %d", rules, next, number)
	}
	if row := c.ChangedRules()[number]; row == nil || len(row.Others) != 1 {
		t.Errorf("the number's row is %v", row)
	}
	c.SetPolicy(ref, nil)
	for range 3 {
		flushAll(c)
	}
	for _, step := range []struct {
		after time.Duration
		rules int
		next  time.Duration
	}{{time.Second, 1, time.Minute}, {50 * time.Second, 1, 11 * time.Second}, {time.Minute + time.Second, 0, 0}} {
		if rules, next := c.ProxyRules(now.Add(step.after)); len(rules) != step.rules || next != step.next {
			t.Errorf("after %s: %d rules, next in %s", step.after, len(rules), next)
		}
	}
	if row, ok := c.ChangedRules()[number]; !ok || row != nil {
		t.Errorf("the number's row stays: %v", row)
	}
}

// TestNamePolicies: policies by which an endpoint may use names, and no others; names select no address in the cluster.
func TestNamePolicies(t *testing.T) {
	c := newProxied(t)
	byName := func(policyName, name string) {
		ref := policy.Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Name: policyName}}
		names := policy.Peer{Names: []policy.NamePattern{{Name: name}}}
		c.SetPolicy(ref, []policy.Spec{{Ref: ref, Tier: policy.TierDefault, Isolates: [2]bool{false, true},
			Rules: []policy.Rule{{Origin: policy.Origin{Ref: ref}, Direction: policy.Egress, Action: policy.Allow,
				Peers: []policy.Peer{names}}}}})
	}
	byName("one", "a.example")
	byName("two", "a.example")
	byName("three", "b.example")
	flushAll(c)
	selectors := c.SelectorsOf([]string{"a.example"})
	if len(selectors) != 1 {
		t.Fatalf("a.example has the selectors %v, want one", selectors)
	}
	got := c.NamePolicies(10)
	if want := "CiliumNetworkPolicy one CiliumNetworkPolicy two"; strings.Join(got[selectors[0]], " ") != want ||
		len(got) != 2 {
		t.Errorf("the policies are %v, want %s for selector %d", got, want, selectors[0])
	}
	if got := c.NamePolicies(11); len(got) != 0 {
		t.Errorf("no endpoint has the policies %v", got)
	}
	for address, want := range map[string]compile.Verdict{"192.0.2.1": compile.Allowed, "10.0.0.2": compile.NoRule,
		"172.16.0.1": compile.NoRule} {
		v := c.LookupNamed(10, netip.MustParseAddr(address), selectors, policy.ProtoTCP, 443)
		if v.Verdict != want {
			t.Errorf("%s, which has the name a.example: %s, want %s", address, v.Verdict, want)
		}
	}
}
