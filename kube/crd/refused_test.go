package crd_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/kube/crd"
	"myelin/test/kube/apiserver"
)

// testRefused: what the schema or an expression forbids is refused with a reason that says
// what.
func testRefused(t *testing.T, s *apiserver.Server) {
	for _, c := range []struct{ kind, spec, want string }{
		{"CiliumNetworkPolicy", "{ingress: [{}]}", "endpointSelector must be set"},
		{"CiliumNetworkPolicy", "{nodeSelector: {}, ingress: [{}]}",
			"nodeSelector must not be set in a CiliumNetworkPolicy"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}}", "must have a rule in one of"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingres: [{}], egress: [{}]}", "unknown field"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80'}]}], icmps: " +
			"[{fields: [{type: 8}]}]}]}", "spec.ingress[0]"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '65536'}]}]}]}",
			"ports[0].port"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80', endPort: " +
			"65536}]}]}]}", "endPort"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80', protocol: " +
			"ICMP}]}]}]}", "protocol"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{fromCIDR: [10.0.0.300]}]}", "fromCIDR[0]"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{fromCIDRSet: [{cidr: 10.0.0.0/8, cidrGroupRef: " +
			"a}]}]}", "fromCIDRSet[0]"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, ingress: [{fromEntities: [nothing]}]}", "fromEntities[0]"},
		{"CiliumNetworkPolicy", "{endpointSelector: {}, egress: [{toServices: [{}]}]}", "toServices[0]"},
		{"CiliumClusterwideNetworkPolicy", "{ingress: [{}]}", "one of endpointSelector and nodeSelector must be set"},
		{"CiliumClusterwideNetworkPolicy", "{endpointSelector: {}, nodeSelector: {}, ingress: [{}]}",
			"only one of endpointSelector and nodeSelector may be set"},
		{"CiliumCIDRGroup", "{externalCIDRs: [10.0.0.0/33]}", "externalCIDRs[0]"},
		{"CiliumLoadBalancerIPPool", "{blocks: [{cidr: 192.0.2.0/24, start: 192.0.2.1}]}",
			"exactly one of cidr and start"},
		{"CiliumLoadBalancerIPPool", "{blocks: [{cidr: 192.0.2.0/33}]}", "is no CIDR"},
		{"CiliumLoadBalancerIPPool", "{blocks: [{start: here}]}", "start is no address"},
	} {
		p := &policy{object: map[string]any{"apiVersion": "cilium.io/v2", "kind": c.kind}}
		text, err := yaml.YAMLToJSON(
			[]byte("{apiVersion: cilium.io/v2, kind: " + c.kind + ", metadata: {name: bad}, spec: " + c.spec + "}"))
		if err != nil {
			t.Fatal(err)
		}
		code, body := s.Try(http.MethodPost, p.path()+"?fieldValidation=Strict", asJSON, text)
		var said struct{ Message string }
		if err := json.Unmarshal(body, &said); err != nil {
			t.Fatal(err)
		}
		if code != http.StatusUnprocessableEntity && code != http.StatusBadRequest ||
			!strings.Contains(said.Message, c.want) {
			t.Errorf("%s %s: %d %q, want %q", c.kind, c.spec, code, said.Message, c.want)
		}
	}
	if code, body := s.Try(http.MethodPost, "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies", asJSON,
		[]byte(
			`{"apiVersion":"cilium.io/v2","kind":"CiliumClusterwideNetworkPolicy","metadata":{"name":"bad"}}`)); code !=
		http.StatusUnprocessableEntity || !strings.Contains(string(body), "one of spec and specs must be set") {
		t.Errorf("without rules: %d %s", code, body)
	}
}

// testVersions: both versions of a kind are one object.
func testVersions(t *testing.T, s *apiserver.Server) {
	s.Apply("/apis/cilium.io/v2alpha1/ciliumcidrgroups/both",
		[]byte(
			`{"apiVersion":"cilium.io/v2alpha1","kind":"CiliumCIDRGroup","metadata":{"name":"both"},"spec":{"externalCIDRs":["10.0.0.0/8","fd00::1"]}}`))
	if got := string(s.Get("/apis/cilium.io/v2/ciliumcidrgroups/both")); !strings.Contains(got, `"fd00::1"`) {
		t.Error(got)
	}
}

func TestNewer(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"1.0.1", "1.0.0", true}, {"1.0.0", "1.0.0", false}, {"1.10.0", "1.9.9", true}, {"1.9.9", "1.10.0", false},
		{"1.0.0", "", true}, {"", "1.0.0", false}, {"x", "1.0.0", false}} {
		if got := crd.Newer(c.a, c.b); got != c.want {
			t.Errorf("Newer(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
