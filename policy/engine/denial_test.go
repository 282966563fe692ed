package engine_test

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/engine"
	"myelin/policy/explain"
	"myelin/test/policy/reference"
)

// webs are two pods of node n1 that the same policy isolates, and that no
// packet from TEST-NET-1 may reach.
func webs() *reference.World {
	pod := func(name, v4, v6 string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: v4}, {IP: v6}}, Phase: corev1.PodRunning},
		}
	}
	return &reference.World{
		Node: "n1",
		Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"}}}},
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}},
		Pods:       []*corev1.Pod{pod("web1", "10.0.0.1", "fd00::1"), pod("web2", "10.0.0.2", "fd00::2")},
		CiliumNetworkPolicies: []*ciliumv2.CiliumNetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "demo",
			Name: "web"}, Spec: &ciliumv2.Rule{
			EndpointSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Ingress: []ciliumv2.IngressRule{{FromPeers: ciliumv2.FromPeers{FromCIDR: []string{"203.0.113.0/24",
				"2001:db8:2::/48"}}}},
			IngressDeny: []ciliumv2.IngressDenyRule{{FromPeers: ciliumv2.FromPeers{FromCIDR: []string{"192.0.2.0/24",
				"2001:db8:1::/48"}}}},
		}}},
	}
}

// What the programs drop is counted for the rule that denied it, or for none.
func TestDenials(t *testing.T) {
	k := engine.NewTestKernel(t)
	enter(t)
	p := newProgram(t, k)
	w := webs()
	a := newAgent(t, w, k)
	p.place(a.slots)
	for src, dst := range map[string]string{
		"192.0.2.1": "10.0.0.1", "192.0.2.2": "10.0.0.2", "2001:db8:1::1": "fd00::2", // denied
		"198.51.100.1": "10.0.0.1", "2001:db8:3::1": "fd00::1", // no rule
		"203.0.113.1": "10.0.0.1", "2001:db8:2::1": "fd00::2", // allowed
	} {
		if bad := p.check(w, a.slots, reference.Probe{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
			Proto: policy.ProtoTCP, Port: 80}); bad != "" {
			t.Error(bad)
		}
	}
	type count struct {
		rule string
		hits uint64
	}
	var got []count
	for _, d := range explain.New(a.engine).Denials() {
		if !reflect.DeepEqual(d.Endpoints, []string{"demo/web1", "demo/web2"}) || d.Direction != policy.Ingress ||
			d.LastTick == 0 || d.Audited {
			t.Errorf("%+v", d)
		}
		row, _, _ := a.engine.Rules.Get(a.db.ReadTxn(), policy.RuleByID(d.Rule))
		c := count{"none", d.Hits}
		if row != nil {
			c.rule = row.Origin.Path
		}
		got = append(got, c)
	}
	if want := []count{{"spec.ingressDeny[0]", 3}, {"none", 2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
