package policytest_test

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/kube/manifests"
	"myelin/policy"
	"myelin/policy/explain"
	"myelin/test/policy/policytest"
)

// edit reads what comes, and takes "-Kind namespace/name" for what goes.
func edit(t *testing.T, yaml string, gone ...policy.Ref) explain.Edit {
	t.Helper()
	e := explain.Edit{Policies: map[policy.Ref]*policy.Object{}, Groups: map[string]*policy.Group{}}
	if yaml != "" {
		policies, groups, err := manifests.ReadPolicies([]byte(yaml), "new.yaml", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range policies {
			e.Policies[p.Ref] = p
		}
		for _, g := range groups {
			e.Groups[g.Name] = g
		}
	}
	for _, ref := range gone {
		e.Policies[ref] = nil
	}
	return e
}

func text(d *explain.Diff) string {
	var b strings.Builder
	for _, o := range d.Objects {
		fmt.Fprintln(&b, o.Object, o.Change)
	}
	for _, f := range d.Flows {
		fmt.Fprintln(&b, "flow", f.Flow, f.Direction, f.VerdictChange)
	}
	for _, p := range d.Pairs {
		fmt.Fprintln(&b, strings.Join(p.Endpoints, " "), p.Direction, p.Peer, p.Peers, p.Ports, p.VerdictChange)
	}
	return b.String()
}

func webPolicy() policy.Ref {
	return policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "demo", Name: "web"}}
}

// diffCase is what is about to be applied, and how many flows it cuts.
type diffCase struct {
	name, yaml  string
	gone        []policy.Ref
	newlyDenied int
}

func diffCases(t *testing.T) []diffCase {
	return []diffCase{
		{"same", strings.Split(read(t, "../../../policy/explain/testdata/cluster/policies.yaml"), "---")[0], nil, 0},
		{"removed", "", []policy.Ref{webPolicy()}, 0},
		{"narrowed", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: demo}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: "2001:db8::/32"}}]
      ports: [{port: 443}, {port: 8443}]
`, nil, 2},
		{"added", `
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: lock}
spec:
  endpointSelector: {matchLabels: {app: db}}
  enableDefaultDeny: {ingress: false, egress: false}
  ingressDeny:
    - fromEntities: [world, cluster]
      toPorts: [{ports: [{port: "5432", protocol: TCP}]}]
`, nil, 1},
		{"partly", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: names, namespace: demo}
spec: {endpointSelector: {matchLabels: {app: web}}, egress: [{toFQDNs: [{matchName: a.example}]}]}
`, nil, 0},
	}
}

// TestDiff compares with testdata; "go test ./policy/policytest -args update" writes it.
func TestDiff(t *testing.T) {
	n := policytest.New(t, "../../../policy/explain/testdata/cluster", "n2")
	flow := func(src, dst string, port uint16) explain.CurrentFlow {
		return explain.CurrentFlow{Name: fmt.Sprintf("%s->%s:%d", src, dst, port), Flow: explain.Flow{
			Src: explain.FlowEnd{Addr: netip.MustParseAddr(src)}, Dst: explain.FlowEnd{Addr: netip.MustParseAddr(dst)},
			Proto: policy.ProtoTCP, Port: port, SrcNode: "n1", DstNode: "n2",
		}}
	}
	flows := []explain.CurrentFlow{
		flow("10.0.1.2", "10.0.2.2", 8080), flow("fd00:10:0:1::2", "fd00:10:0:2::2", 8080), flow("10.0.1.2", "10.0.2.3",
			22), flow("10.0.1.2", "10.0.2.3", 5432),
	}
	before := explain.New(n.Engine).Uses()
	for _, c := range diffCases(t) {
		d, err := explain.New(n.Engine).Diff(t.Context(), edit(t, c.yaml, c.gone...), flows)
		if err != nil || d.Unfinished != "" || d.LookedFlows != len(flows) {
			t.Errorf("%s: %v, %+v", c.name, err, d)
			continue
		}
		denied := 0
		for _, f := range d.Flows {
			if !f.Allowed {
				denied++
			}
		}
		if denied != c.newlyDenied {
			t.Errorf("%s: %d flows are newly denied, want %d", c.name, denied, c.newlyDenied)
		}
		path := filepath.Join("testdata", "diff", c.name+".txt")
		if slices.Contains(flag.Args(), "update") {
			if err := os.WriteFile(path, []byte(text(d)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := text(d); got != read(t, path) {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, read(t, path))
		}
	}
	if after := explain.New(n.Engine).Uses(); len(after) != len(before) {
		t.Errorf("comparing has changed the rules: %d, %d before", len(after), len(before))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := explain.New(n.Engine).Diff(over, edit(t, "", webPolicy()), flows); err != nil || d.Unfinished == "" ||
		d.LookedFlows != 0 {
		t.Errorf("without time: %v, %+v", err, d)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}
