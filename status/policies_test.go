package status

import (
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/policy"
)

func policyObject(name, problem string) *policy.Object {
	return &policy.Object{Ref: policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "demo", Name: name}},
		Problem: problem}
}

// policies is a node that enforces policies, one of which is refused.
func policies(t *testing.T) Facts {
	f := good(t)
	f.Settings.Policy = 1
	f.Maps = append(f.Maps, &bpf.Usage{Name: "verdicts", Type: "Hash", Entries: 7, Max: 1000})
	f.Policies = CountPolicies(
		[]*policy.Object{policyObject("web", ""),
			policyObject("db", "spec.ingress[0].ports[0].port: 99999 is no port")},
		[]*policy.Group{{Name: "offices"}},
		[]*policy.Realised{{Slot: 1, Pod: "host", Known: true},
			{Slot: 2, Pod: "demo/web", Known: true, Enforced: [2]bool{true, false}}},
		3, begin())
	return f
}

func TestPolicies(t *testing.T) {
	const chosen = "default, 1 of 2 endpoints with policies, 2 objects, 3 rules, 7 rows; 1 refused"
	const refused = "NetworkPolicy demo/db: spec.ingress[0].ports[0].port: 99999 is no port"
	for name, c := range map[string]struct {
		change func(*Facts)
		state  State
		want   []string
	}{
		"off":     {func(f *Facts) { f.Settings.Policy = 0 }, Off, []string{"off"}},
		"refused": {func(*Facts) {}, Fallback, []string{chosen, refused}},
		"good": {func(f *Facts) { f.Policies.Refused, f.Policies.Problems = 0, nil }, OK,
			[]string{strings.TrimSuffix(chosen, "; 1 refused")}},
		"audit": {func(f *Facts) { f.Config.Policy.Audit = true }, Fallback,
			[]string{chosen, "policyAuditMode: what is denied is only counted, and goes on", refused}},
		"one is audited": {
			func(f *Facts) { f.Policies.Audited = 1 }, Fallback,
			[]string{chosen, "what is denied to 1 endpoint is only counted, and goes on", refused},
		},
		"full": {
			func(f *Facts) { f.Policies.Failed = []string{"demo/web: ingress: map verdicts is full"} }, Broken,
			[]string{chosen, refused, "demo/web: ingress: map verdicts is full"},
		},
		"not yet": {
			func(f *Facts) { f.Policies = Policies{} }, Broken,
			[]string{"default, 0 of 0 endpoints with policies, 0 objects, 0 rules, 7 rows",
				"nothing is in the kernel yet: what an agent before left there holds"},
		},
	} {
		f := policies(t)
		c.change(&f)
		x := f.policies()
		if got := append([]string{x.Chosen}, x.Problems...); x.State != c.state || !slices.Equal(got, c.want) {
			t.Errorf("%s: %s %q, want %s %q", name, x.State, got, c.state, c.want)
		}
	}
}

// A refused object says which version is in force, and one of which a part is not
// enforced says which.
func TestInForce(t *testing.T) {
	last, closed, partly := policyObject("last", "bad"), policyObject("closed", "bad"), policyObject("partly", "")
	last.InForce, closed.InForce = policy.LastGoodVersion, policy.Closed
	partly.Specs = []policy.Spec{{Rules: []policy.Rule{{
		Unenforced: []string{"spec.egress[0].toFQDNs: toFQDNs is not supported"},
	}}}}
	f := policies(t)
	f.Policies = CountPolicies([]*policy.Object{last, closed, partly}, nil, nil, 0, begin())
	x := f.policies()
	want := []string{
		"NetworkPolicy demo/closed: bad (there is no good version: what is not understood allows nothing)",
		"NetworkPolicy demo/last: bad (the last good version is in force)",
		"not enforced, and allows nothing: NetworkPolicy demo/partly: spec.egress[0].toFQDNs: toFQDNs is not supported",
	}
	if !slices.Equal(x.Problems, want) || x.State != Fallback ||
		!strings.HasSuffix(x.Chosen, "; 2 refused; 1 partly enforced") || f.Policies.Accepted != 1 {
		t.Errorf("%s %q, %q", x.State, x.Chosen, x.Problems)
	}
}

// Of many refused objects three are told, and the number of the others.
func TestManyPolicies(t *testing.T) {
	f := policies(t)
	var objects []*policy.Object
	for i := range 30 {
		objects = append(objects, policyObject(string(rune('a'+i)), "bad"))
	}
	f.Policies = CountPolicies(objects, nil, []*policy.Realised{{Slot: 9, Error: "no room", Audit: true}}, 0, begin())
	x := f.policies()
	if len(f.Policies.Problems) != maxErrors || f.Policies.Refused != 30 || x.State != Broken ||
		!slices.Contains(x.Problems, "… and 27 more (--verbose)") ||
		!slices.Contains(x.Problems, "endpoint 9: no room") {
		t.Errorf("%+v, %q", f.Policies, x.Problems)
	}
}
