package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// facts are what is known of a cluster, and of what was deployed there.
type facts struct {
	crew

	near, far string // nodes
	image     string
	external  string
	domain    string
	// noDNS and noCilium are why tests of names and of Cilium's policies are skipped.
	noDNS, noCilium string
	kubernetes      netip.Addr
	addresses       map[string][]netip.Addr // of Services, by name
	nodePort        map[string]uint16
	ingress         []netip.Addr
	agents          agents
	encryption      encryption
}

func (f *facts) addressesOf(service string) []netip.Addr { return f.addresses[service] }

// discover looks at the cluster and changes nothing.
func (s *server) discover(ctx context.Context, o Options) (*facts, error) {
	f := &facts{external: o.ExternalTarget, domain: o.Domain, addresses: map[string][]netip.Addr{},
		nodePort: map[string]uint16{}}
	err := errors.Join(s.findNodes(ctx, f, o.Nodes), s.findAgents(ctx, f, o.AgentNamespace), s.findDNS(ctx, f),
		s.findKinds(ctx, f))
	if err != nil {
		return nil, err
	}
	f.image = cmp.Or(o.Image, f.agents.image, o.DefaultImage)
	return f, nil
}

// findNodes takes those that are asked for, or the first two that are ready; those
// that everybody may use come first.
func (s *server) findNodes(ctx context.Context, f *facts, asked []string) error {
	if len(asked) > 2 {
		return fmt.Errorf("--nodes: want one or two, not %d", len(asked))
	}
	if len(asked) > 0 {
		f.near, f.far = asked[0], asked[len(asked)-1]
		return nil
	}
	var list corev1.NodeList
	if err := s.Get(ctx, "/api/v1/nodes", &list); err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(n corev1.Node) bool {
		return n.Spec.Unschedulable || !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	slices.SortStableFunc(list.Items, func(a, b corev1.Node) int {
		return cmp.Or(cmp.Compare(len(a.Spec.Taints), len(b.Spec.Taints)), cmp.Compare(a.Name, b.Name))
	})
	if len(list.Items) == 0 {
		return errors.New("no node is ready")
	}
	f.near, f.far = list.Items[0].Name, list.Items[min(1, len(list.Items)-1)].Name
	return nil
}

// agents are the pods of the DaemonSet.
type agents struct {
	namespace, image string
	missing          string         // why no server can be asked
	pods             map[string]pod // by node; problem is set where one isn't ready
}

func (s *server) findAgents(ctx context.Context, f *facts, namespace string) error {
	f.agents = agents{namespace: namespace, pods: map[string]pod{}}
	var set appsv1.DaemonSet
	err := s.Get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/myelin", &set)
	if apierrors.IsNotFound(err) {
		f.agents.missing = fmt.Sprintf("there is no DaemonSet %s/myelin, whose agents could be asked", namespace)
		return nil
	}
	if err != nil {
		return err
	}
	f.agents.image = set.Spec.Template.Spec.Containers[0].Image
	return nil
}

// refresh looks for the agents as they are now.
func (s *server) refresh(ctx context.Context, a *agents) error {
	var list corev1.PodList
	if err := s.Get(ctx, "/api/v1/namespaces/"+a.namespace+"/pods?labelSelector="+url.QueryEscape("k8s-app=myelin"),
		&list); err != nil {
		return err
	}
	clear(a.pods)
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			a.pods[p.Spec.NodeName] = pod{name: p.Name, namespace: p.Namespace, problem: waiting(&p)}
		}
	}
	return nil
}

// findDNS looks for the DNS server, and for what it must know.
func (s *server) findDNS(ctx context.Context, f *facts) error {
	var kubernetes corev1.Service
	if err := s.Get(ctx, "/api/v1/namespaces/default/services/kubernetes", &kubernetes); err != nil {
		return err
	}
	var err error
	if f.kubernetes, err = netip.ParseAddr(kubernetes.Spec.ClusterIP); err != nil {
		return fmt.Errorf("Service default/kubernetes: %w", err)
	}
	var slicesOf discoveryv1.EndpointSliceList
	if err := s.Get(ctx, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector="+
		url.QueryEscape("k8s-app=kube-dns"), &slicesOf); err != nil {
		return err
	}
	f.noDNS = "no backend of a Service with the label k8s-app=kube-dns is ready in kube-system"
	for _, slice := range slicesOf.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				f.noDNS = ""
			}
		}
	}
	return nil
}

// findKinds looks whether Cilium's policies are installed.
func (s *server) findKinds(ctx context.Context, f *facts) error {
	var kinds metav1.APIResourceList
	err := s.Get(ctx, "/apis/cilium.io/v2", &kinds)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if !slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool {
		return r.Name == "ciliumnetworkpolicies"
	}) {
		f.noCilium = "CiliumNetworkPolicy is not installed"
	}
	return nil
}
