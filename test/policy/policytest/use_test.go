package policytest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/policy"
	"myelin/policy/explain"
	"myelin/test/policy/policytest"
)

// What each rule does on a node: of pods elsewhere nothing, and here what its rows
// say, with their hits.
func TestUses(t *testing.T) {
	n := policytest.New(t, "testdata/uses", "n1")
	states := func() string {
		var out []string
		for _, u := range explain.New(n.Engine).Uses() {
			out = append(out, fmt.Sprintf("%s %s: %s, %d endpoints, %d hits at %d", u.Origin.Ref.Name, u.Origin.Path,
				u.State,
				u.Endpoints, u.Hits, u.LastTick))
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	want := `pass spec.ingress[0]: pass, 1 endpoints, 0 hits at 0
web spec.ingress[0]: never hit, 1 endpoints, 0 hits at 0
web spec.ingress[1]: shadowed, 1 endpoints, 0 hits at 0
web spec.ingress[2]: no such peer, 1 endpoints, 0 hits at 0
elsewhere spec.ingress[0]: selects no endpoint here, 0 endpoints, 0 hits at 0`
	lines := strings.Split(want, "\n")
	slices.Sort(lines)
	if got := states(); got != strings.Join(lines, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
	rows, err := explain.New(n.Engine).Lines(2)
	if err != nil {
		t.Fatal(err)
	}
	// The datapath counts in the rows themselves.
	var key bpf.DatapathVerdictKey
	var value bpf.DatapathVerdict
	for all := n.Datapath.Verdicts.Iterate(); all.Next(&key, &value); {
		if value.Rule != 0 {
			value.Hits, value.Last = 3, 7
			if err := n.Datapath.Verdicts.Put(&key, &value); err != nil {
				t.Fatal(err)
			}
		}
	}
	hit := 0
	for _, l := range rows {
		if l.Rule != 0 {
			hit++
		}
	}
	if got := states(); hit == 0 || !strings.Contains(got,
		fmt.Sprintf("web spec.ingress[0]: hit, 1 endpoints, %d hits at 7", 3*hit)) {
		t.Errorf("%d rows were hit 3 times each:\n%s", hit, got)
	}
	if by := explain.New(n.Engine).Isolating(2, policy.Ingress); !slices.Equal(by, []string{"NetworkPolicy demo/web"}) {
		t.Errorf("ingress is isolated by %v", by)
	}
	if by := explain.New(n.Engine).Isolating(2, policy.Egress); len(by) != 0 {
		t.Errorf("egress is isolated by %v", by)
	}
}
