package manifests

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/policy"
)

// text is a policy that allows a port.
func text(name string, port int) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: "+
		"{podSelector: {}, ingress: [{ports: [{port: %d}]}]}}\n", name, port)
}

// Of a long file with one policy that changes, one row is written; the others
// stay the very same, with the time since when they are so.
func TestPolicyChangeIsOneRow(t *testing.T) {
	const n = 200
	dir := t.TempDir()
	s := newSource(t, dir)
	path := filepath.Join(dir, "a.yaml")
	now := time.Unix(1000, 0)
	s.Now = func() time.Time { return now }
	put := func(ports ...int) {
		var b strings.Builder
		for i := range n {
			b.WriteString("---\n" + text(fmt.Sprint("p", i), ports[min(i, len(ports)-1)]))
		}
		write(t, path, b.String())
		s.refresh(nil, map[string]bool{path: true})
	}
	row := func(name string) *policy.Object {
		ref := policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "default", Name: name}}
		o, _, ok := s.Policies.Policies.Get(s.DB.ReadTxn(), policy.ObjectByRef(ref))
		if !ok {
			t.Fatalf("%s is not there", ref)
		}
		return o
	}
	put(80)
	first, other, revision := row("p0"), row("p1"), s.Policies.Policies.Revision(s.DB.ReadTxn())
	now = time.Unix(2000, 0)
	put(81, 80)
	if got := s.Policies.Policies.Revision(s.DB.ReadTxn()); got != revision+1 {
		t.Errorf("one change of %d policies wrote %d rows", n, got-revision)
	}
	if got := row("p0"); got == first || got.Since.Unix() != 2000 || got.Specs[0].Rules[0].Ports[0].First != 81 {
		t.Errorf("the changed row is %+v", got)
	}
	if got := row("p1"); got != other || got.Since.Unix() != 1000 {
		t.Errorf("a row that did not change is another: %+v", got)
	}
	// Refused, a row has the time of that, and keeps it.
	now = time.Unix(3000, 0)
	put(0, 80)
	refused := row("p0")
	now = time.Unix(4000, 0)
	put(0, 80, 82)
	if got := row("p0"); got != refused || got.Since.Unix() != 3000 || got.Problem == "" ||
		got.Specs[0].Rules[0].Ports[0].First != 81 {
		t.Errorf("the refused row is %+v", got)
	}
}

// The tables count as filled once the directory has been read, and what follows
// them gets everything, then what changes.
func TestFollowPolicies(t *testing.T) {
	dir := t.TempDir()
	s := newSource(t, dir)
	if done, _ := s.Policies.Policies.Initialized(s.DB.ReadTxn()); done {
		t.Error("policies count as filled before the directory was read")
	}
	follower, err := s.Policies.Follow(s.DB)
	if err != nil {
		t.Fatal(err)
	}
	next := func() (got []string) {
		c := follower.Next(s.DB.ReadTxn())
		for change := range c.Policies {
			got = append(got, fmt.Sprint(change.Deleted, " ", change.Object.Ref.Name))
		}
		for change := range c.Groups {
			got = append(got, fmt.Sprint(change.Deleted, " ", change.Object.Name))
		}
		return got
	}
	path := filepath.Join(dir, "a.yaml")
	write(t, path, text("a", 80)+"---\n{apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: g}, spec: "+
		"{externalCIDRs: []}}\n")
	s.refresh(nil, nil)
	if done, _ := s.Policies.Groups.Initialized(s.DB.ReadTxn()); !done {
		t.Error("groups don't count as filled after the directory was read")
	}
	if got := strings.Join(next(), ", "); got != "false a, false g" {
		t.Errorf("at first: %s", got)
	}
	write(t, path, text("b", 80))
	s.refresh(nil, map[string]bool{path: true})
	if got := strings.Join(next(), ", "); got != "false b, true a, true g" && got != "true a, false b, true g" {
		t.Errorf("then: %s", got)
	}
}
