package l7

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"

	"myelin/agent/feature"
	"myelin/cluster"
	agentconfig "myelin/config"
	"myelin/l7/config"
	"myelin/policy"
)

// resolveCase is a rule, and what is left of it.
type resolveCase struct {
	name string
	rule policy.L7
	// want is what is left, as text; empty: nothing.
	want, secrets string
	problems      []string
}

// TestResolve: what of a rule names a Secret that cannot be used is left out, and a rule of which nothing is left
// allows nothing, even if it would allow all requests without the part that is left out. Problems have no contents.
func TestResolve(t *testing.T) {
	t.Parallel()
	ref := func(name string) policy.SecretRef { return policy.SecretRef{Namespace: "n", Name: name} }
	tls := func(name string) *policy.TLSContext { return &policy.TLSContext{Secret: ref(name)} }
	header := func(secret string) policy.HTTPRule {
		r := ref(secret)
		return policy.HTTPRule{Path: "/" + secret, HeaderMatches: []policy.HeaderMatch{{Name: "X-Token", Secret: &r}}}
	}
	stored := map[policy.SecretRef]map[string][]byte{
		ref("token"): {"token": []byte("hunter2")}, ref("two"): {"a": []byte("hunter2"), "b": []byte("hunter2")},
		ref("bad"): {"tls.crt": []byte("hunter2"), "tls.key": []byte("hunter2"), "ca.crt": []byte("hunter2")},
	}
	find := func(r policy.SecretRef) (map[string][]byte, error) {
		if data, ok := stored[r]; ok {
			return data, nil
		}
		return nil, fmt.Errorf("Secret %s does not exist", r)
	}
	any := policy.HTTPRule{Path: "/any"}
	for _, test := range []resolveCase{
		{"no Secret", policy.L7{HTTP: []policy.HTTPRule{any}}, "http /any", "", nil},
		{"a header", policy.L7{HTTP: []policy.HTTPRule{header("token")}}, "http /token [X-Token: secret n/token]",
			"n/token", nil},
		{"one of two rules", policy.L7{HTTP: []policy.HTTPRule{header("none"), any}}, "http /any", "",
			[]string{"headerMatches: Secret n/none does not exist"}},
		{"the only rule", policy.L7{HTTP: []policy.HTTPRule{header("none")}}, "", "",
			[]string{"headerMatches: Secret n/none does not exist"}},
		{"two values", policy.L7{HTTP: []policy.HTTPRule{header("two")}}, "", "",
			[]string{"http[0]: headerMatches: Secret n/two has 2 values instead of one"}},
		{"no certificate", policy.L7{Terminating: tls("bad"), HTTP: []policy.HTTPRule{header("token")}}, "", "n/token",
			[]string{"terminatingTLS: read certificate of Secret n/bad: tls: failed to find any PEM data"}},
		{"neither exists", policy.L7{Terminating: tls("x"), Originating: tls("y")}, "", "", []string{
			"originatingTLS: Secret n/y does not exist", "terminatingTLS: Secret n/x does not exist"}},
		{"no authority", policy.L7{Originating: tls("bad")}, "", "",
			[]string{"originatingTLS: read certificate authorities of Secret n/bad: there are none"}},
	} {
		test.run(t, find)
	}
}

func (test *resolveCase) run(t *testing.T, find func(policy.SecretRef) (map[string][]byte, error)) {
	t.Helper()
	origin := policy.Origin{Path: "spec.egress[0]", Ref: policy.Ref{Kind: "CiliumNetworkPolicy",
		Key: cluster.Key{Namespace: "n", Name: "p"}}}
	given := &config.Config{Rules: []config.Rule{{Number: 1, Parts: []config.Part{{Origin: origin, L7: test.rule}}},
		{Number: 2, Parts: []config.Part{{Origin: origin, L7: test.rule}, {L7: policy.L7{}}}}}}
	before := test.rule.String()
	out, uses := resolve(given, find)
	var left, secrets []string
	for _, p := range out.Rules[0].Parts {
		left = append(left, p.L7.String())
	}
	for _, s := range out.Secrets {
		secrets = append(secrets, s.String())
	}
	if got := strings.Join(left, "; "); got != test.want || strings.Join(secrets, " ") != test.secrets {
		t.Errorf("%s: left is %q, with the Secrets %v", test.name, got, secrets)
	}
	if n := len(out.Rules[1].Parts); n != len(left)+1 || given.Rules[0].Parts[0].L7.String() != before {
		t.Errorf("%s: %d parts of the second rule, %s given", test.name, n, &given.Rules[0].Parts[0].L7)
	}
	problems := secretProblems(uses)
	for i, problem := range problems {
		const rule, end = "CiliumNetworkPolicy n/p spec.egress[0]: ", ": what needs it is denied"
		if i >= len(test.problems) || !strings.HasPrefix(problem, rule+test.problems[i]) ||
			!strings.HasSuffix(problem, end) || strings.Contains(problem, "hunter2") {
			t.Errorf("%s: problem %q", test.name, problem)
		}
	}
	if len(problems) != len(test.problems) || !slices.IsSortedFunc(uses, func(a, b *secretUse) int {
		return strings.Compare(a.Field, b.Field)
	}) {
		t.Errorf("%s: problems %q of %d", test.name, problems, len(test.problems))
	}
}

// TestFindSecret: in a directory of manifests Secrets are where rules say; at an API server they are in one namespace,
// where others have the names of copies.
func TestFindSecret(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(tables.Secrets)
	for _, key := range []string{"demo/tls", "cilium-secrets/demo-tls", "cilium-secrets/own"} {
		namespace, name, _ := strings.Cut(key, "/")
		row := &cluster.Secret{Namespace: namespace, Name: name, Data: map[string][]byte{"is": []byte(key)}}
		if _, _, err := tables.Secrets.Insert(txn, row); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	for _, test := range []struct{ kubeConfig, ref, want string }{
		{"", "demo/tls", "demo/tls"},
		{"", "demo/none", "Secret demo/none does not exist"},
		{"/kube", "demo/tls", "cilium-secrets/demo-tls"},
		{"/kube", "cilium-secrets/own", "cilium-secrets/own"},
		{"/kube", "demo/none", "Secret demo/none does not exist in namespace cilium-secrets as demo-none"},
		{"/kube", "cilium-secrets/none", "Secret cilium-secrets/none does not exist"},
	} {
		c := agentconfig.Default()
		if c.KubeConfigPath = test.kubeConfig; test.kubeConfig == "" {
			c.Myelin.Manifests = "/manifests"
		}
		f := &Feature{Node: &feature.Node{Config: c, DB: db, Cluster: tables}}
		namespace, name, _ := strings.Cut(test.ref, "/")
		data, err := f.findSecret(policy.SecretRef{Namespace: namespace, Name: name})
		got := string(data["is"])
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s with kubeConfigPath %q: %q, want %q", test.ref, test.kubeConfig, got, test.want)
		}
	}
}
