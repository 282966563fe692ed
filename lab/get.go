package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/lab/controller"
	"myelin/lab/show"
)

// resource is a kind under the names that commands take.
type resource struct {
	kind, group string
	names       []string // the plural first
	all         bool     // part of "all"
}

func resources() []resource {
	return []resource{
		{"Pod", "", []string{"pods", "pod", "po"}, true},
		{"Service", "", []string{"services", "service", "svc"}, true},
		{"DaemonSet", "apps", []string{"daemonsets", "daemonset", "ds"}, true},
		{"Deployment", "apps", []string{"deployments", "deployment", "deploy"}, true},
		{"ReplicaSet", "apps", []string{"replicasets", "replicaset", "rs"}, true},
		{"StatefulSet", "apps", []string{"statefulsets", "statefulset", "sts"}, true},
		{"Job", "batch", []string{"jobs", "job"}, true},
		{"Node", "", []string{"nodes", "node", "no"}, false},
		{"Namespace", "", []string{"namespaces", "namespace", "ns"}, false},
		{"EndpointSlice", "discovery.k8s.io", []string{"endpointslices", "endpointslice"}, false},
		{"NetworkPolicy", "networking.k8s.io", []string{"networkpolicies", "networkpolicy", "netpol"}, false},
		{
			"ClusterNetworkPolicy",
			"policy.networking.k8s.io",
			[]string{"clusternetworkpolicies", "clusternetworkpolicy", "cnps"},
			false,
		},
		{"CiliumNetworkPolicy", "cilium.io", []string{"ciliumnetworkpolicies", "ciliumnetworkpolicy", "cnp"}, false},
		{
			"CiliumClusterwideNetworkPolicy",
			"cilium.io",
			[]string{"ciliumclusterwidenetworkpolicies", "ciliumclusterwidenetworkpolicy", "ccnp"},
			false,
		},
		{"CiliumCIDRGroup", "cilium.io", []string{"ciliumcidrgroups", "ciliumcidrgroup", "ccg"}, false},
	}
}

// allResources is the name that stands for Pods, Services and workloads.
const allResources = "all"

// resourceNamed finds a kind by any of its names, also with the group behind it: "deployments.apps".
func resourceNamed(name string) (resource, bool) {
	short, group, _ := strings.Cut(strings.ToLower(name), ".")
	for _, r := range resources() {
		if slices.Contains(r.names, short) && (group == "" || group == r.group ||
			strings.HasSuffix(group, "."+r.group)) {
			return r, true
		}
	}
	return resource{}, false
}

// IsResource reports whether commands take a name for a kind.
func IsResource(name string) bool {
	_, ok := resourceNamed(name)
	return ok || name == allResources
}

// Query says which objects Get is for.
type Query struct {
	Resource  string   // e.g. "pods", "svc", "deployments.apps", or "all"
	Names     []string // "name" or "namespace/name"; empty: all
	Namespace string   // empty: all
	Selector  labels.Selector
}

// Get returns objects with their status, sorted by namespace and name. A name that no object has is an error.
func (l *Lab) Get(ctx context.Context, q Query) ([]show.Item, error) {
	var kinds []resource
	for _, r := range resources() {
		if named, ok := resourceNamed(q.Resource); q.Resource == allResources && r.all || ok && named.kind == r.kind {
			kinds = append(kinds, r)
		}
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("the lab does not have a resource type %q", q.Resource)
	}
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	states, err := l.podStates()
	if err != nil {
		return nil, err
	}
	var items []show.Item
	c := l.clusterOf(objects, states)
	for _, r := range kinds {
		of, err := l.items(ctx, r, objects, c)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(of, func(a, b show.Item) int {
			return strings.Compare(a.Namespace+"\x00"+a.Name, b.Namespace+"\x00"+b.Name)
		})
		items = append(items, of...)
	}
	return q.filter(items)
}

func (q Query) filter(items []show.Item) ([]show.Item, error) {
	items = slices.DeleteFunc(items, func(i show.Item) bool {
		return q.Namespace != "" && i.Namespace != q.Namespace ||
			q.Selector != nil && !q.Selector.Matches(labels.Set(i.Labels))
	})
	if len(q.Names) == 0 {
		return items, nil
	}
	var found []show.Item
	for _, name := range q.Names {
		n := len(found)
		for _, i := range items {
			if i.Name == name || i.Namespace+"/"+i.Name == name {
				found = append(found, i)
			}
		}
		if len(found) == n {
			return nil, fmt.Errorf("%s %q not found", q.Resource, name)
		}
	}
	return found, nil
}

// items are all objects of a kind.
func (l *Lab) items(ctx context.Context, r resource, objects []*object, c *controller.Cluster) ([]show.Item, error) {
	var items []show.Item
	if r.kind == "Pod" {
		for _, pod := range c.Pods {
			items = append(items, l.podItem(r, pod, c))
		}
		return items, nil
	}
	for _, o := range objects {
		if group, _, ok := strings.Cut(o.APIVersion, "/"); o.Kind != r.kind || ok != (r.group != "") ||
			ok && group != r.group {
			continue
		}
		item, err := l.item(ctx, r, o, c)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	if r.kind == "EndpointSlice" {
		return l.addSlices(ctx, r, items)
	}
	return items, nil
}

func (l *Lab) item(ctx context.Context, r resource, o *object, c *controller.Cluster) (show.Item, error) {
	i := show.Item{
		Resource: r.names[0], Group: r.group, Namespace: o.Namespace, Name: o.Name, Labels: o.Labels,
		Created: o.CreationTimestamp.Time,
	}
	if i.Created.IsZero() {
		if info, err := os.Stat(o.file); err == nil {
			i.Created = info.ModTime()
		}
	}
	switch typed := o.typed.(type) {
	case nil:
		var raw map[string]any
		if err := yaml.Unmarshal(o.data, &raw); err != nil {
			return i, fmt.Errorf("%s: %w", o, err)
		}
		i.Object = raw
	case *corev1.Node:
		i.Object = l.nodeWithStatus(ctx, typed)
	default:
		i.Object = c.WithStatus(withType(typed, o.TypeMeta))
	}
	return i, nil
}

// withType is the object with its kind, which Kubernetes' types lose where they are copied.
func withType(o controller.Object, of metav1.TypeMeta) controller.Object {
	out := o.DeepCopyObject().(controller.Object)
	out.GetObjectKind().SetGroupVersionKind(of.GroupVersionKind())
	return out
}

func (l *Lab) podItem(r resource, pod *corev1.Pod, c *controller.Cluster) show.Item {
	i := show.Item{
		Resource: r.names[0], Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels,
		Created: pod.CreationTimestamp.Time,
		Object:  withType(pod, metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}),
	}
	if pod.Status.StartTime != nil {
		i.Created = pod.Status.StartTime.Time
	}
	for _, st := range pod.Status.ContainerStatuses {
		i.Restarts += int(st.RestartCount)
	}
	if err := c.Unschedulable(pod); err != nil {
		i.Reason = err.Error()
	}
	return i
}

// nodeWithStatus is a Node that is ready where its agent is; without an agent nothing is known.
func (l *Lab) nodeWithStatus(ctx context.Context, node *corev1.Node) *corev1.Node {
	out := node.DeepCopy()
	out.Kind, out.APIVersion = "Node", "v1"
	n := l.Node(node.Name)
	if n.err != nil || l.opts.Agent == "" {
		return out
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady"}
	if err := n.agentReady(ctx); err != nil {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "AgentNotReady", err.Error()
	}
	out.Status.Conditions = append(slices.DeleteFunc(out.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady
	}), ready)
	return out
}

// addSlices adds the EndpointSlices that agents make of selectors, as the first one that answers has them. All have the
// same.
func (l *Lab) addSlices(ctx context.Context, r resource, items []show.Item) ([]show.Item, error) {
	var errs []error
	for _, n := range l.Nodes() {
		if !n.AgentProcess().Alive() || !n.readsManifests() {
			continue
		}
		var rows []*cluster.EndpointSlice
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		err := n.list(ctx, "endpoint-slices", &rows)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		items = nil // those of manifests are among them
		for _, s := range rows {
			items = append(items, show.Item{
				Resource: r.names[0], Group: r.group, Namespace: s.Namespace, Name: s.Name, Object: s,
				Labels: map[string]string{"kubernetes.io/service-name": s.Service},
			})
		}
		return items, nil
	}
	return items, errors.Join(errs...)
}
