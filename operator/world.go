package operator

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/cluster"
	"myelin/kube"
	"myelin/kube/crd"
)

// world is what a leader knows of the cluster, and has done.
type world struct {
	nodes       *kube.Cache[*node]
	ciliumNodes *kube.Cache[*crd.CiliumNode]
	services    *kube.Cache[*corev1.Service]
	pools       *kube.Cache[*crd.CiliumLoadBalancerIPPool]
	policies    []*kube.Cache[*policyObject]
	// jobs are what is to be kept right.
	jobs []*job
	// said are the events that were told, by node.
	said map[string]string
	// counted is when a policy's counts were written last, and due when the next
	// ones may be; zero: there are none to write.
	counted map[policyKey]time.Time
	due     time.Time
	// certificates is nil if there are none to make, and check when it is looked at them again.
	certificates *job
	check        time.Time
}

// job is something to keep right, and whether what it depends on has changed.
type job struct {
	keep  func(context.Context, *world) error
	dirty atomic.Bool
}

// node is as much of a Node as is needed.
type node struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Addresses []corev1.NodeAddress `json:"addresses"`
	} `json:"status"`
}

// read makes an object of JSON. What it doesn't know it passes over: others wrote it.
func read[T any](raw []byte) (*T, error) {
	object := new(T)
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, err
	}
	return object, nil
}

// ciliumKind is one of Cilium's.
func ciliumKind(kind, plural string) kube.Resource {
	return kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: kind},
		Plural: plural, Optional: true}
}

// clusterPolicyKind is the kind of ClusterNetworkPolicies, whose definition the cluster's administrator installs.
func clusterPolicyKind() kube.Resource {
	return kube.Resource{GroupVersionKind: schema.GroupVersionKind{Group: "policy.networking.k8s.io",
		Version: "v1alpha2", Kind: "ClusterNetworkPolicy"}, Plural: "clusternetworkpolicies", Optional: true}
}

func coreKind(kind, plural string) kube.Resource {
	return kube.Resource{GroupVersionKind: corev1.SchemeGroupVersion.WithKind(kind), Plural: plural}
}

func (o *Operator) world(poke func()) *world {
	w := &world{said: map[string]string{}, counted: map[policyKey]time.Time{}}
	nodes, services, policies := &job{keep: o.keepNodes}, &job{keep: o.keepServices}, &job{keep: o.keepPolicies}
	w.jobs = []*job{nodes, services, policies}
	if len(o.Certificates) > 0 {
		w.certificates = &job{keep: o.keepCertificates}
		w.certificates.dirty.Store(true)
		w.jobs = append([]*job{w.certificates}, w.jobs...)
	}
	changes := func(jobs ...*job) func() {
		return func() {
			for _, j := range jobs {
				j.dirty.Store(true)
			}
			poke()
		}
	}
	w.nodes = kube.NewCache(o.client, coreKind("Node", "nodes"), o.Log, readNode, changes(nodes))
	w.ciliumNodes = kube.NewCache(o.client, ciliumKind("CiliumNode", "ciliumnodes"), o.Log, read[crd.CiliumNode],
		changes(nodes, policies))
	w.services = kube.NewCache(o.client, coreKind("Service", "services"), o.Log, readService, changes(services))
	w.pools = kube.NewCache(o.client, ciliumKind("CiliumLoadBalancerIPPool", "ciliumloadbalancerippools"), o.Log,
		read[crd.CiliumLoadBalancerIPPool], changes(services))
	for _, r := range []kube.Resource{
		ciliumKind("CiliumNetworkPolicy", "ciliumnetworkpolicies"), ciliumKind("CiliumClusterwideNetworkPolicy",
			"ciliumclusterwidenetworkpolicies"), clusterPolicyKind(),
	} {
		w.policies = append(w.policies, kube.NewCache(o.client, r, o.Log, readPolicy(r.GroupVersionKind),
			changes(policies)))
	}
	return w
}

// readNode keeps of a Node what is needed: the rest is the most of it.
func readNode(raw []byte) (*node, error) {
	n, err := read[node](raw)
	if err == nil {
		n.Metadata = metav1.ObjectMeta{Name: n.Metadata.Name, UID: n.Metadata.UID, Labels: n.Metadata.Labels,
			DeletionTimestamp: n.Metadata.DeletionTimestamp}
	}
	return n, err
}

func readService(raw []byte) (*corev1.Service, error) {
	s, err := read[corev1.Service](raw)
	if err == nil {
		s.ManagedFields = nil
		delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return s, err
}

// caches are what follows the server.
func (w *world) caches() []func(context.Context) error {
	list := []func(context.Context) error{w.nodes.Run, w.ciliumNodes.Run, w.services.Run, w.pools.Run}
	for _, p := range w.policies {
		list = append(list, p.Run)
	}
	return list
}

// later is when there is something to do although nothing changes; nil: never.
func (w *world) later(now time.Time) <-chan time.Time {
	next := w.due
	if !w.check.IsZero() && (next.IsZero() || w.check.Before(next)) {
		next = w.check
	}
	if next.IsZero() {
		return nil
	}
	return time.After(next.Sub(now))
}

// pass makes everything right that is known to be wrong.
func (o *Operator) pass(ctx context.Context, w *world, defined *bool) error {
	var errs []error
	if !*defined {
		err := o.define(ctx)
		*defined = err == nil
		errs = append(errs, err)
	}
	for _, err := range []error{w.nodes.Problem(), w.services.Problem(), w.ciliumNodes.Problem(), w.pools.Problem()} {
		errs = append(errs, err)
	}
	if !w.due.IsZero() && !o.Now().Before(w.due) {
		w.jobs[len(w.jobs)-1].dirty.Store(true)
	}
	if w.certificates != nil && !o.Now().Before(w.check) {
		w.certificates.dirty.Store(true)
	}
	for _, j := range w.jobs {
		if !j.dirty.Swap(false) {
			continue
		}
		err := j.keep(ctx, w)
		if err != nil {
			j.dirty.Store(true)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// collect adds what went wrong. Objects that are another version by now are left for the
// next pass, which has that.
func collect(errs *[]error, err error) {
	if err != nil && !isStale(err) {
		*errs = append(*errs, err)
	}
}

// at is the key of an object without a namespace.
func at(name string) cluster.Key { return cluster.Key{Name: name} }
