package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// kind is one that has a table.
type kind struct {
	schema.GroupVersionKind

	resource string
	// optional kinds come with a CustomResourceDefinition, which may be missing.
	optional bool
	// namespace is the only one that is looked into; empty: all are. The right to it may be missing.
	namespace string
	// object and list are what the decoder fills. Rows are made of them at once.
	object, list runtime.Object
	convert      func(o runtime.Object, now time.Time) (row any, faults cluster.FieldErrors)
	// version is that of the rules of an object; nil: none is kept.
	version func(o runtime.Object) uint64
	// rows are where they go.
	rows rows
	// known is the row that is there, if it is equal: then the new one is not kept.
	known func(row any) any
}

// definition is the name of the kind's CustomResourceDefinition.
func (k *kind) definition() string { return k.resource + "." + k.Group }

// kinds are all that there are.
func kinds(t cluster.Tables, p policy.Tables, last *policy.LastGood) []*kind {
	core, cilium := corev1.SchemeGroupVersion, schema.GroupVersion{Group: "cilium.io", Version: "v2"}
	list := []*kind{
		{
			GroupVersionKind: core.WithKind("Node"), resource: "nodes", object: &corev1.Node{},
			list:    &corev1.NodeList{},
			convert: typed(cluster.FromNode), rows: nodeRows(t),
		},
		{
			GroupVersionKind: core.WithKind("Namespace"), resource: "namespaces", object: &corev1.Namespace{},
			list:    &corev1.NamespaceList{},
			convert: typed(cluster.FromNamespace), rows: namespaceRows(t),
		},
		{
			GroupVersionKind: core.WithKind("Pod"), resource: "pods", object: &corev1.Pod{}, list: &corev1.PodList{},
			convert: typed(newPodReader().read), rows: podRows(t),
		},
		{
			GroupVersionKind: core.WithKind("Service"), resource: "services", object: &corev1.Service{},
			list:    &corev1.ServiceList{},
			convert: typed(cluster.FromService), rows: serviceRows(t),
		},
		{
			GroupVersionKind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), resource: "endpointslices",
			object: &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
			convert: typed(cluster.FromEndpointSlice), rows: sliceRows(t),
		},
	}
	for _, k := range []*kind{
		{GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), resource: "networkpolicies"},
		{GroupVersionKind: schema.GroupVersion{Group: "policy.networking.k8s.io",
			Version: "v1alpha2"}.WithKind("ClusterNetworkPolicy"), resource: "clusternetworkpolicies", optional: true},
		{GroupVersionKind: cilium.WithKind("CiliumNetworkPolicy"), resource: "ciliumnetworkpolicies", optional: true},
		{GroupVersionKind: cilium.WithKind("CiliumClusterwideNetworkPolicy"),
			resource: "ciliumclusterwidenetworkpolicies", optional: true},
	} {
		k.object, k.list, k.rows = &raw{}, &rawList{}, policyRows(p, last, k.Kind)
		apiVersion, name := k.ToAPIVersionAndKind()
		k.convert = strict(closing(p, parse.Readers()[apiVersion+"/"+name]))
		if k.Group == cilium.Group {
			k.version = ruleVersion
		}
		list = append(list, k)
	}
	return append(list, &kind{
		GroupVersionKind: cilium.WithKind(parse.GroupKind), resource: "ciliumcidrgroups", optional: true,
		object: &raw{}, list: &rawList{}, convert: strict(parse.ReadGroup), rows: groupRows(p, last),
	})
}

// secretKind is that of the Secrets of a namespace.
func secretKind(t cluster.Tables, namespace string) *kind {
	return &kind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"), resource: "secrets", namespace: namespace,
		object: &corev1.Secret{}, list: &corev1.SecretList{},
		convert: typed(cluster.FromSecret), rows: secretRows(t),
	}
}

// typed converts what the server has checked: of fields that it may know and we
// don't, nothing is said.
func typed[T, R any](from func(*T, string) (*R, error)) func(runtime.Object, time.Time) (any, cluster.FieldErrors) {
	return func(o runtime.Object, _ time.Time) (any, cluster.FieldErrors) {
		object, ok := any(o).(*T)
		if !ok {
			return nil, cluster.FieldErrors{{Field: "kind", Reason: fmt.Sprintf("%T is another kind", o)}}
		}
		row, err := from(object, Origin)
		if err != nil {
			return nil, cluster.Faults(err)
		}
		return row, nil
	}
}

// strict converts policies: of those, a field that is not known may be one that
// forbids something.
func strict[R any](read func([]byte, parse.Origin) (*R, cluster.FieldErrors)) func(runtime.Object,
	time.Time) (any, cluster.FieldErrors) {
	return func(o runtime.Object, now time.Time) (any, cluster.FieldErrors) {
		object, ok := o.(*raw)
		if !ok {
			return nil, cluster.FieldErrors{{Field: "kind", Reason: fmt.Sprintf("%T is another kind", o)}}
		}
		row, faults := read(object.text, parse.Origin{Source: Origin, Now: now})
		if row == nil {
			return nil, faults
		}
		return row, faults // with faults it is a closed version
	}
}

// closing closes what needs a proxy, if there is none.
func closing(t policy.Tables, read parse.Reader) parse.Reader {
	return func(text []byte, of parse.Origin) (*policy.Object, cluster.FieldErrors) {
		row, faults := read(text, of)
		return t.InForce(row), faults
	}
}

// item makes what is kept of an object.
func (k *kind) item(o runtime.Object, now time.Time) (*item, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k.Kind, err)
	}
	out := &item{ObjectMeta: metav1.ObjectMeta{Name: m.GetName(), Namespace: m.GetNamespace(),
		ResourceVersion: m.GetResourceVersion(), Generation: m.GetGeneration()}}
	out.row, out.faults = k.convert(o, now)
	if k.version != nil {
		out.version = k.version(o)
	}
	if out.row != nil && len(out.faults) == 0 && k.known != nil {
		out.row = k.known(out.row)
	}
	return out, nil
}

// items makes what is kept of a list.
func (k *kind) items(list runtime.Object, now time.Time) (runtime.Object, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("read a list of %s: %w", k.Kind, err)
	}
	out := &itemList{ListMeta: metav1.ListMeta{
		ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(),
		RemainingItemCount: m.GetRemainingItemCount(),
	}}
	out.Items = make([]item, 0, meta.LenList(list))
	return out, meta.EachListItem(list, func(o runtime.Object) error {
		i, err := k.item(o, now)
		if err == nil {
			out.Items = append(out.Items, *i)
		}
		return err
	})
}
