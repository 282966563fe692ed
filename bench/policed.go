package bench

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/parse"
)

// policed are the rows that objects of the API become: a cluster, and its policies.
type policed struct {
	nodes      []*cluster.Node
	namespaces []*cluster.Namespace
	pods       []*cluster.Pod
	policies   []*policy.Object
	groups     []*policy.Group
}

// add converts an object, and adds its row.
func add[O, R any](list *[]R, from func(O, string) (R, error), o O) error {
	row, err := from(o, "bench")
	*list = append(*list, row)
	return err
}

func (p *policed) addNamespace(name string) error {
	labels := map[string]string{corev1.LabelMetadataName: name}
	return add(&p.namespaces, cluster.FromNamespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: labels}})
}

// addNode adds one that has an address and a prefix for its pods.
func (p *policed) addNode(name, address string, podCIDR netip.Prefix) error {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.PodCIDR = podCIDR.String()
	o.Spec.PodCIDRs = []string{o.Spec.PodCIDR}
	o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	return add(&p.nodes, cluster.FromNode, o)
}

func (p *policed) addPod(node, in, name string, labels map[string]string, address string) error {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: name, Labels: labels}}
	o.Spec.NodeName = node
	o.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	o.Status.Phase, o.Status.PodIP, o.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	return add(&p.pods, cluster.FromPod, o)
}

// addPolicy adds a NetworkPolicy for all pods of a namespace and both directions.
func (p *policed) addPolicy(in, name string, peers []networkingv1.NetworkPolicyPeer,
	ports ...networkingv1.NetworkPolicyPort) error {
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: name}}
	o.Spec = networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}},
	}
	specs, err := parse.NetworkPolicy(o, "bench", nil)
	p.addSpecs("NetworkPolicy", in, name, specs)
	return err
}

func (p *policed) addSpecs(kind, in, name string, specs []policy.Spec) {
	ref := policy.Ref{Kind: kind, Key: cluster.Key{Namespace: in, Name: name}}
	p.policies = append(p.policies, &policy.Object{Ref: ref, Specs: specs})
}

// apps are peers by the label app.
func apps(names ...string) (peers []networkingv1.NetworkPolicyPeer) {
	for _, name := range names {
		peers = append(peers,
			networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": name},
			}})
	}
	return peers
}

// ports are from first on, last included; all of the protocol if they are 0.
func ports(protocol corev1.Protocol, first, last int32) networkingv1.NetworkPolicyPort {
	p := networkingv1.NetworkPolicyPort{Protocol: &protocol}
	if first != 0 {
		number := intstr.FromInt32(first)
		p.Port, p.EndPort = &number, &last
	}
	return p
}

// addPolicies adds so many. The last one lets all pods of the namespace that are called so talk to each other by TCP
// and UDP; of the others one half is about apps that are nowhere, and the other about everybody and four ports of SCTP:
// no row of them is like another, and of what the last one allows there is none but its own.
func (p *policed) addPolicies(in string, count int, among ...string) error {
	const apart = 6
	for i := range count - 1 {
		first := int32(1 + i*apart%60000)
		peers, what := apps(fmt.Sprint("nowhere-", i)), ports(corev1.ProtocolTCP, first, first)
		if i%2 == 1 {
			peers, what = nil, ports(corev1.ProtocolSCTP, first, first+3)
		}
		if err := p.addPolicy(in, fmt.Sprint("other-", i), peers, what); err != nil {
			return err
		}
	}
	if count == 0 {
		return nil
	}
	return p.addPolicy(in, "traffic", apps(among...), ports(corev1.ProtocolTCP, 0, 0), ports(corev1.ProtocolUDP, 0, 0))
}

// addList adds a list of so many addresses and prefixes, the last one of which is given, and a policy for all pods of a
// namespace: what is not in the list can be reached, and may not come in.
func (p *policed) addList(in string, count int, last netip.Prefix) error {
	const name = "list"
	group := &ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	group.Spec.ExternalCIDRs = append(someCIDRs(count-1, last.Addr().Is6()), last.String())
	if err := add(&p.groups, parse.CIDRGroup, group); err != nil {
		return err
	}
	of := []ciliumv2.CIDRRule{{CIDRGroupRef: name}}
	o := &ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: name}, Spec: &ciliumv2.Rule{
		EndpointSelector: &metav1.LabelSelector{},
		EgressDeny:       []ciliumv2.EgressDenyRule{{ToPeers: ciliumv2.ToPeers{ToCIDRSet: of}}},
		Egress:           []ciliumv2.EgressRule{{ToPeers: ciliumv2.ToPeers{ToEntities: []string{"all"}}}},
		Ingress:          []ciliumv2.IngressRule{{FromPeers: ciliumv2.FromPeers{FromCIDRSet: of}}},
	}}
	specs, err := parse.CiliumNetworkPolicy(o, "bench", nil)
	p.addSpecs("CiliumNetworkPolicy", in, name, specs)
	return err
}

// someCIDRs are always the same ones: single addresses, and each hundredth a prefix, in half of IPv4 or in
// 2001:db8::/32.
func someCIDRs(count int, six bool) []string {
	r := rand.New(rand.NewPCG(1, 1))
	all := make([]string, count)
	for i := range all {
		addr, bits := [16]byte{0x20, 0x01, 0x0d, 0xb8}, 128
		for b := 4; b < len(addr); b++ {
			addr[b] = byte(r.Uint32())
		}
		a := netip.AddrFrom16(addr)
		if !six {
			a, bits = netip.AddrFrom4([4]byte{addr[4] | 0x80, addr[5], addr[6], addr[7]}), 32
		}
		if i%100 == 0 {
			bits -= 4 + r.IntN(8)
		}
		all[i] = netip.PrefixFrom(a, bits).Masked().String()
	}
	return all
}
