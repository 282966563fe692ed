package kube_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/kube"
	"myelin/kube/manifests"
	"myelin/policy"
	"myelin/test/kube/apiserver"
)

// TestServer is all that needs a real API server, in one, for a start takes
// seconds.
func TestServer(t *testing.T) {
	s := server{apiserver.Start(t)}
	t.Run("RBAC", func(t *testing.T) { testRBAC(t, s) })
	t.Run("InstalledLater", func(t *testing.T) { testInstalledLater(t, s) })
	s.applyFile(t, "kube/testdata/definitions.yaml", "examples/two-nodes/nodes.yaml", "examples/two-nodes/pods.yaml",
		"examples/two-nodes/services.yaml",
		"kube/testdata/slice.yaml", "kube/testdata/policies.yaml")
	t.Run("Account", func(t *testing.T) { testAccount(t, s) })
	t.Run("Same", func(t *testing.T) { testSame(t, s) })
	t.Run("Changes", func(t *testing.T) { testChanges(t, s) })
	t.Run("Refused", func(t *testing.T) { testRefused(t, s) })
	t.Run("Away", func(t *testing.T) { testAway(t, s) })
	t.Run("Removed", func(t *testing.T) { testRemoved(t, s) })
}

func options(s server) kube.Options { return kube.Options{KubeConfig: s.KubeConfig(apiserver.Agent)} }

// testRBAC: a client that may not list waits and reports it; what role.yaml grants is
// enough, but for Secrets, without which all else is known.
func testRBAC(t *testing.T, s server) {
	w := followWith(t, options(s), func(p *kube.Params) { p.SecretsNamespace = "cilium-secrets" })
	w.eventually("what is forbidden is told", func() string {
		state := w.state()
		if text := state.Obstacle(); !strings.Contains(text, "can't be listed") ||
			!strings.Contains(text, "forbidden") {
			return fmt.Sprintf("%q", text)
		}
		return ""
	})
	if w.state().Synced {
		t.Fatal("synced with nothing")
	}
	if ok, _ := w.cluster.Nodes.Initialized(w.db.ReadTxn()); ok {
		t.Fatal("tables are initialized before anything is known")
	}
	s.applyFile(t, "kube/role.yaml")
	s.apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: myelin-test}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: myelin}\nsubjects: [{kind: User, "+
		"name: "+apiserver.Agent+", apiGroup: rbac.authorization.k8s.io}]")
	w.synced()
	if state := w.state(); !strings.Contains(state.Obstacle(), "Secret can't be listed") {
		t.Errorf("without the right to Secrets: %q", state.Obstacle())
	}
	s.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: cilium-secrets}")
	s.applyFile(t, "kube/secrets-role.yaml")
	s.apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: myelin-test, "+
		"namespace: cilium-secrets}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: myelin-secrets}\nsubjects: [{kind: User, "+
		"name: "+apiserver.Agent+", apiGroup: rbac.authorization.k8s.io}]")
	for _, namespace := range []string{"cilium-secrets", "default"} {
		s.apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: demo-tls, namespace: "+namespace+"}\n"+
			"stringData: {token: abc}")
	}
	w.eventually("the Secret", func() string {
		txn := w.db.ReadTxn()
		key := cluster.Key{Namespace: "cilium-secrets", Name: "demo-tls"}
		row, _, ok := w.cluster.Secrets.Get(txn, cluster.SecretByKey(key))
		state := w.state()
		if !ok || string(row.Data["token"]) != "abc" || w.cluster.Secrets.NumObjects(txn) != 1 ||
			state.Obstacle() != "" {
			return fmt.Sprintf("%v, %q", row, state.Obstacle())
		}
		return ""
	})
	if ok, _ := w.policies.Groups.Initialized(w.db.ReadTxn()); !ok {
		t.Error("tables are not initialized")
	}
}

// testInstalledLater: kinds that the server lacks are no obstacle, and are there
// soon after they are installed.
func testInstalledLater(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	var missing []string
	for _, k := range w.state().Kinds {
		if k.Missing {
			missing = append(missing, k.Name)
		}
	}
	slices.Sort(missing)
	if want := []string{"CiliumCIDRGroup", "CiliumClusterwideNetworkPolicy", "CiliumNetworkPolicy",
		"ClusterNetworkPolicy"}; !slices.Equal(missing, want) {
		t.Fatalf("missing are %q, want %q", missing, want)
	}
	s.applyFile(t, "kube/testdata/definitions.yaml")
	begin := time.Now()
	w.eventually("all kinds are listed", func() string {
		for _, k := range w.state().Kinds {
			if k.Missing || !k.Listed {
				return fmt.Sprintf("%+v", k)
			}
		}
		return ""
	})
	t.Logf("listed %s after their definition", time.Since(begin).Round(time.Millisecond))
}

// testAccount: a service account's files will do, and an address that is not
// theirs.
func testAccount(t *testing.T, s server) {
	dir := t.TempDir()
	ca, err := os.ReadFile(s.CA())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"token": []byte(apiserver.Agent), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := follow(t, kube.Options{Account: dir, Host: "127.0.0.1", Port: uint16(s.Port()), Env: func(string) string {
		return ""
	}}).synced()
	if w.cluster.Nodes.NumObjects(w.db.ReadTxn()) == 0 {
		t.Error("no nodes")
	}
}

// testSame: the tables are what manifests of the same objects make of them.
func testSame(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(s.dump()), 0o600); err != nil {
		t.Fatal(err)
	}
	m := tables(t)
	source, err := manifests.New(manifests.Params{
		DB: m.db, Tables: m.cluster, Policies: m.policies, Dir: dir, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = source.Run(t.Context()) }()
	m.eventually("manifests are read", func() string {
		if ok, _ := m.cluster.Nodes.Initialized(m.db.ReadTxn()); !ok {
			return "they are not"
		}
		return ""
	})
	for p := range source.Problems().All(m.db.ReadTxn()) {
		t.Error(p.Error())
	}
	got, want := w.lines(), m.lines()
	if len(want) < 20 {
		t.Errorf("only %d rows", len(want))
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("from the server only:   %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("from manifests only:    %s", line)
		}
	}
}

// testChanges: each kind is created, changed and deleted.
func testChanges(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	for _, c := range []struct{ object, before, after string }{
		{"apiVersion: v1\nkind: Node\nmetadata: {name: third, labels: {x: VALUE}}\nspec: {podCIDR: 10.9.0.0/24, " +
			"podCIDRs: [10.9.0.0/24]}", "val-one", "val-two"},
		{"apiVersion: v1\nkind: Namespace\nmetadata: {name: changing, labels: {x: VALUE}}", "val-one", "val-two"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: changing, labels: {x: VALUE}}\nspec: {containers: [{name: a, " +
			"image: a}]}", "val-one", "val-two"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: changing}\nspec: {clusterIP: 10.96.0.77, ports: [{name: " +
			"VALUE, port: 80}]}", "val-one", "val-two"},
		{"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: changing, labels: " +
			"{kubernetes.io/service-name: changing}}\naddressType: IPv4\nendpoints: [{addresses: [VALUE]}]", "10.9.0.1",
			"10.9.0.2"},
		{"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: changing}\nspec: {podSelector: " +
			"{matchLabels: {x: VALUE}}}", "val-one", "val-two"},
		{"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: changing}\nspec: {endpointSelector: " +
			"{matchLabels: {x: VALUE}}, ingress: [{}]}", "val-one", "val-two"},
		{"apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: changing}\nspec: " +
			"{endpointSelector: {matchLabels: {x: VALUE}}, ingress: [{}]}", "val-one", "val-two"},
		{"apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: changing}\nspec: {externalCIDRs: [VALUE]}",
			"10.9.0.0/16", "fd00:9::/64"},
		{"apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: " +
			"changing}\nspec: {tier: Admin, priority: 7, subject: {namespaces: {matchLabels: {x: VALUE}}}, ingress: " +
			"[{action: Deny, from: [{namespaces: {}}]}]}", "val-one", "val-two"},
	} {
		kind, _, _ := strings.Cut(strings.SplitN(c.object, "kind: ", 2)[1], "\n")
		t.Run(kind, func(t *testing.T) {
			w := &world{T: t, db: w.db, cluster: w.cluster, policies: w.policies, source: w.source}
			before := w.lines()
			has := func(value string, want bool) func() string {
				return func() string {
					lines := slices.DeleteFunc(w.lines(), func(line string) bool {
						return slices.Contains(before, line)
					})
					if strings.Contains(strings.Join(lines, "\n"), value) != want {
						return fmt.Sprintf("%q is in %q", value, lines)
					}
					return ""
				}
			}
			at := s.apply(t, strings.ReplaceAll(c.object, "VALUE", c.before))
			w.eventually("created", has(c.before, true))
			s.apply(t, strings.ReplaceAll(c.object, "VALUE", c.after))
			w.eventually("changed", has(c.after, true))
			if said := has(c.before, false)(); said != "" {
				t.Errorf("what it was before stays: %s", said)
			}
			s.Delete(at[0])
			w.eventually("deleted", func() string {
				if after := w.lines(); !slices.Equal(before, after) {
					return strings.Join(after, "\n")
				}
				return ""
			})
		})
	}
	if state := w.state(); state.Obstacle() != "" {
		t.Error(state.Obstacle())
	}
}

// testRefused: a bad version changes nothing but what is said of the object.
func testRefused(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	const good = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: broken}\nspec: " +
		"{endpointSelector: {matchLabels: {x: good}}, ingress: [{}]}"
	ref := policy.Ref{Kind: "CiliumNetworkPolicy"}
	ref.Namespace, ref.Name = "default", "broken"
	row := func() *policy.Object {
		o, _, _ := w.policies.Policies.Get(w.db.ReadTxn(), policy.ObjectByRef(ref))
		return o
	}
	problems := func() (list []string) {
		for p := range w.source.Problems().All(w.db.ReadTxn()) {
			list = append(list, p.Error())
		}
		return list
	}
	at := s.apply(t, good)
	w.eventually("a good version is accepted", func() string {
		if o := row(); o == nil || o.Problem != "" {
			return fmt.Sprintf("%+v", o)
		}
		return ""
	})
	specs := fmt.Sprint(row().Specs)
	s.apply(t, strings.Replace(good, "ingress:", "ingres:", 1))
	w.eventually("a bad one is refused", func() string {
		if o := row(); !strings.Contains(o.Problem, "ingres") || len(problems()) == 0 {
			return fmt.Sprintf("%+v, %q", o, problems())
		}
		return ""
	})
	const of = "kubernetes: CiliumNetworkPolicy default/broken: "
	want := []string{of + "spec.ingres: unknown field",
		of + "spec: must have a rule in one of ingress, ingressDeny, egress, egressDeny"}
	if got := problems(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
	if got := fmt.Sprint(row().Specs); got != specs {
		t.Errorf("rules became %s, want %s", got, specs)
	}
	for _, k := range w.state().Kinds {
		if want := map[string]int{"CiliumNetworkPolicy": 1}[k.Name]; k.Refused != want {
			t.Errorf("%s: %d refused, want %d", k.Name, k.Refused, want)
		}
	}
	// A source that never saw a good version isolates, allows nothing, and says why.
	late := follow(t, options(s)).synced()
	o, _, ok := late.policies.Policies.Get(late.db.ReadTxn(), policy.ObjectByRef(ref))
	both := [2]bool{true, true}
	if !ok || o.InForce != policy.Closed || o.Problem == "" || len(o.Specs) != 1 || o.Specs[0].Isolates != both {
		t.Errorf("without a good version: %+v", o)
	}
	s.Delete(at[0])
	w.eventually("it goes, and what was said of it", func() string {
		if o := row(); o != nil || len(problems()) > 0 {
			return fmt.Sprintf("%+v, %q", o, problems())
		}
		return ""
	})
}

// testAway: without the server nothing changes; with it again only what is
// another.
func testAway(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	heard, before := w.state().LastContact, w.revisions()
	if heard.IsZero() {
		t.Error("there was no contact")
	}
	s.Kill()
	w.eventually("it is told that the server is away", func() string {
		state := w.state()
		if !strings.Contains(state.Obstacle(), "can't be reached") || state.Since.IsZero() || state.Failed == 0 {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
	time.Sleep(3 * time.Second)
	if now := w.revisions(); now != before {
		t.Errorf("rows changed while the server was away: %s became %s", before, now)
	}
	// One that starts now knows nothing, and says so.
	late := follow(t, options(s))
	late.eventually("it is told that the server can't be reached", func() string {
		if state := late.state(); !strings.Contains(state.Obstacle(), "can't be reached") {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
	if ok, _ := late.cluster.Nodes.Initialized(late.db.ReadTxn()); ok {
		t.Error("tables are initialized without a server")
	}
	s.Resume()
	late.synced()
	w.eventually("it is told that the server is back", func() string {
		if state := w.state(); state.Obstacle() != "" || !state.LastContact.After(heard) {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
	if now := w.revisions(); now != before {
		t.Errorf("rows changed when the server came back: %s became %s", before, now)
	}
	for i, at := range s.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: back}\n---\n"+
		"apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: back}\n"+
		"spec: {externalCIDRs: [10.8.0.0/16]}") {
		w.eventually("what changes then is seen: "+at, func() string {
			if !strings.Contains(strings.Join(w.lines(), "\n"), `"name":"back"`) ||
				i == 1 && !strings.Contains(strings.Join(w.lines(), "\n"), "10.8.0.0/16") {
				return "it is not"
			}
			return ""
		})
	}
}

// testRemoved: a kind that is removed goes with its objects, and may come back.
func testRemoved(t *testing.T, s server) {
	w := follow(t, options(s)).synced()
	group := func() kube.Kind {
		state := w.state()
		return state.Kinds[slices.IndexFunc(state.Kinds, func(k kube.Kind) bool { return k.Name == "CiliumCIDRGroup" })]
	}
	if k := group(); !k.Listed || k.Objects == 0 {
		t.Fatalf("before: %+v", k)
	}
	s.Delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ciliumcidrgroups.cilium.io")
	w.eventually("the kind has gone", func() string {
		if k := group(); !k.Missing || k.Objects > 0 || k.Problem != "" {
			return fmt.Sprintf("%+v", k)
		}
		return ""
	})
	s.applyFile(t, "kube/testdata/definitions.yaml")
	w.eventually("the kind is back", func() string {
		if k := group(); k.Missing || !k.Listed {
			return fmt.Sprintf("%+v", k)
		}
		return ""
	})
}
