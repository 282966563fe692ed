package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiv1 "myelin/api/v1"
	"myelin/policy"
	"myelin/policy/explain"
)

// tracer answers about policies, and stores the requests.
type tracer struct {
	fake
	trace explain.Trace
	diff  explain.Diff
	asked any
}

func (j *tracer) TracePolicies(_ context.Context, r *apiv1.TracePoliciesRequest) (*apiv1.TracePoliciesResponse, error) {
	j.asked = r
	data, err := json.Marshal(&j.trace)
	return &apiv1.TracePoliciesResponse{Json: data}, err
}

func (j *tracer) DiffPolicies(_ context.Context, r *apiv1.DiffPoliciesRequest) (*apiv1.DiffPoliciesResponse, error) {
	j.asked = r
	data, err := json.Marshal(&j.diff)
	return &apiv1.DiffPoliciesResponse{Json: data}, err
}

func TestPolicyTrace(t *testing.T) {
	j := &tracer{trace: explain.Trace{From: "demo/a", To: "demo/b", Port: "80", Ways: []explain.Way{{
		Source: explain.Party{Name: "demo/a"}, Destination: explain.Party{Name: "demo/b"}, Port: "80/TCP",
		Verdict: explain.Denied,
		Egress:  explain.Side{Why: "allowed: no policy speaks of egress of demo/a"},
		Ingress: explain.Side{Why: "denied: no rule allows it"},
	}}}}
	socket := serveAgent(t, j)
	for verdict, want := range map[string]exitStatus{explain.Allowed: 0, explain.Audited: 0, explain.Denied: 1,
		explain.Mixed: 1} {
		j.trace.Verdict = verdict
		for _, output := range []string{"", "json"} {
			out, _, err := runNoun("policy", "trace", "--socket", socket, "--from", "demo/a", "--to", "demo/b",
				"--port", "80", "-o", output)
			var code exitStatus
			if err != nil && !errors.As(err, &code) || code != want {
				t.Errorf("%s: %v, want status %d", verdict, err, want)
			}
			var back explain.Trace
			if output == "json" && (json.Unmarshal([]byte(out), &back) != nil || back.Verdict != verdict) ||
				output == "" && out != j.trace.String() {
				t.Errorf("%s: %s", verdict, out)
			}
		}
	}
	if r, ok := j.asked.(*apiv1.TracePoliciesRequest); !ok || r.GetFrom() != "demo/a" || r.GetTo() != "demo/b" ||
		r.GetPort() != "80" {
		t.Errorf("asked %v", j.asked)
	}
	for want, args := range map[string][]string{
		"want --from, --to and --port, or --flow": {"--from", "demo/a", "--to", "demo/b"},
		"--flow stands alone":                     {"--flow", "x", "--to", "demo/b"},
		"want json, yaml, wide or jsonpath":       {"-o", "xml"},
		"unknown flag: --form":                    {"--form", "x"},
		"unknown command \"x\"":                   {"x"},
		"no agent answers": {"--from", "demo/a", "--to", "demo/b", "--port", "80", "--socket",
			"/nonexistent/socket"},
	} {
		_, stderr, err := runNoun(append([]string{"policy", "trace", "--socket", socket}, args...)...)
		var code exitStatus
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(stderr, want) ||
			!errors.As(err, &code) || code != 2 {
			t.Errorf("%v: %v, %q, want status 2 and %s", args, err, stderr, want)
		}
	}
}

func TestPolicyDiff(t *testing.T) {
	turn := explain.VerdictChange{RuleBefore: "NetworkPolicy demo/web spec.ingress[0] (manifests:web.yaml:8)"}
	j := &tracer{diff: explain.Diff{
		Objects: []explain.ObjectDiff{{Object: "NetworkPolicy demo/web", Change: "changed"}},
		Flows: []explain.FlowDiff{{Flow: "10.0.1.2:40000->10.0.2.2:80/TCP", VerdictChange: turn},
			{Flow: "other", Direction: policy.Egress, VerdictChange: turn}},
		Pairs: []explain.PairDiff{{
			Direction: policy.Ingress, Endpoints: []string{"demo/web"}, Ports: "80/TCP", VerdictChange: turn, Peers: 2,
			Example: netip.MustParseAddr("10.0.1.2"),
			Peer:    "k8s:app=client,k8s:io.cilium.k8s.namespace.labels.team=shop,k8s:io.kubernetes.pod.namespace=demo",
		}},
		LookedFlows: 9, LookedPairs: 40, Unfinished: "time was over",
	}}
	socket := serveAgent(t, j)
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte("kind: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var code exitStatus
	out, _, err := runNoun("policy", "diff", file, "--delete", "NetworkPolicy demo/old", "--limit", "1",
		"--socket", socket)
	if !errors.As(err, &code) || code != 1 {
		t.Errorf("something is denied: %v", err)
	}
	r, ok := j.asked.(*apiv1.DiffPoliciesRequest)
	if !ok || len(r.GetFiles()) != 1 || r.GetFiles()[0].GetName() != "web.yaml" ||
		string(r.GetFiles()[0].GetYaml()) != "kind: x\n" || len(r.GetDelete()) != 1 {
		t.Errorf("asked %v", j.asked)
	}
	want := `NetworkPolicy demo/web changed
flows: 2 of 9 change
  10.0.1.2:40000->10.0.2.2:80/TCP: ingress newly denied; before: NetworkPolicy demo/web spec.ingress[0] (manifests:web.yaml:8); after: no rule
  … and 1 more; --limit 0 shows all
endpoints and peers: 1 change, 40 pairs were compared
  demo/web ingress from k8s:app=client,k8s:io.kubernetes.pod.namespace=demo (2 addresses, such as 10.0.1.2), 80/TCP: newly denied; before: NetworkPolicy demo/web spec.ingress[0] (manifests:web.yaml:8); after: no rule
not all was compared: time was over
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	j.diff.Flows, j.diff.Pairs[0].Allowed = nil, true
	if out, _, err := runNoun("policy", "diff", file, "-o", "json", "--socket", socket); err != nil ||
		!strings.Contains(out, `"allowed": true`) {
		t.Errorf("nothing is denied: %s, %v", out, err)
	}
	if _, _, err := runNoun("policy", "diff", filepath.Join(t.TempDir(), "none"), "--socket", socket); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("no such file: %v", err)
	}
}
