package scenario

import (
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/policy/ciliumv2"
	"myelin/test/policy/reference"
)

func scenarios(t *testing.T) []Scenario {
	t.Helper()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 60 {
		t.Fatalf("only %d scenarios", len(all))
	}
	return all
}

func world(t *testing.T, s Scenario) *reference.World {
	t.Helper()
	w, err := s.World()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestScenarios holds the reference to what is written by hand.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			w := world(t, s)
			for _, p := range s.Probes {
				if got := w.Path(p.Probe); got.Allowed != p.Allow {
					t.Errorf("%s: got %s by %q", p, verdict(got.Allowed), got.Why)
				}
			}
		})
	}
}

// TestEachPolicy removes each policy in turn: the probes must notice.
func TestEachPolicy(t *testing.T) {
	for _, s := range scenarios(t) {
		w := world(t, s)
		each(w, func(name string, without *reference.World) {
			notice := slices.ContainsFunc(s.Probes, func(p Probe) bool {
				return without.Path(p.Probe).Allowed != p.Allow
			})
			if !notice && !redundant(s.Name, name) {
				t.Errorf("%s: no probe needs %s", s.Name, name)
			}
		})
	}
}

// redundant are policies that are there to make no difference.
func redundant(scenario, policy string) bool {
	return slices.Contains([]string{
		"np-allow-ingress deny", "np-allow-egress deny", // all is allowed beside it
		"tier-admin-deny all",     // allows what is denied
		"tier-admin-accept never", // denies what is accepted
	}, scenario+" "+policy)
}

// each calls f for each policy of a world with a world that lacks it.
func each(w *reference.World, f func(name string, without *reference.World)) {
	lacking(w, f, func(w *reference.World) *[]*networkingv1.NetworkPolicy { return &w.NetworkPolicies })
	lacking(w, f, func(w *reference.World) *[]*ciliumv2.CiliumNetworkPolicy { return &w.CiliumNetworkPolicies })
	lacking(w, f, func(w *reference.World) *[]*ciliumv2.CiliumClusterwideNetworkPolicy {
		return &w.CiliumClusterwideNetworkPolicies
	})
	lacking(w, f, func(w *reference.World) *[]*policyv1.ClusterNetworkPolicy { return &w.ClusterNetworkPolicies })
}

func lacking[T interface{ GetName() string }](w *reference.World, f func(string, *reference.World),
	list func(*reference.World) *[]T) {
	for i, p := range *list(w) {
		less := *w
		*list(&less) = slices.Delete(slices.Clone(*list(w)), i, i+1)
		f(p.GetName(), &less)
	}
}

func TestBadProbes(t *testing.T) {
	cluster, err := base()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"x/a v/a TCP/80 allow":                "not FROM",
		"x/a -> v/a TCP/80 perhaps":           "not FROM",
		"x/nobody -> v/a TCP/80 allow":        `no place "x/nobody"`,
		"x/a -> v/a HTTP/80 allow":            `"HTTP/80" is not`,
		"x/a -> v/a TCP/65536 allow":          `"TCP/65536" is not`,
		"x/a -> v/a ICMP/8 allow IPv6":        "stands for nothing",
		"world/one -> world/two TCP/80 allow": "stands for nothing",
	} {
		_, err := parseProbes("\n"+line, cluster)
		if err == nil || !strings.HasPrefix(err.Error(), "probes line 2: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error of line 2 with %s", line, err, want)
		}
	}
}

func TestBadObjects(t *testing.T) {
	for text, want := range map[string]string{
		"kind: NetworkPolicy\nmetadata: {name: a, namespace: b}\nspec: {pods: {}}": `document 1: NetworkPolicy b/a: `,
		"# nothing\n---\nkind: Gateway\nmetadata: {name: a}": "document 2: Gateway /a: no " +
			"such kind here",
		"metadata: {name: a}": "document 1:  /a: no kind",
	} {
		if err := Add(&reference.World{}, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestProbes finds both verdicts and families among the probes.
func TestProbes(t *testing.T) {
	count := map[string]int{}
	for _, s := range scenarios(t) {
		for _, p := range s.Probes {
			count[verdict(p.Allow)+" "+family(p.Src)]++
		}
	}
	for _, kind := range []string{"allow IPv4", "allow IPv6", "deny IPv4", "deny IPv6"} {
		if count[kind] < 400 {
			t.Errorf("%d probes %s, want more", count[kind], kind)
		}
	}
	t.Log(count)
}
