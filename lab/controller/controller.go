// Package controller decides what kube-controller-manager and kube-scheduler would do in a cluster: which ReplicaSets
// and Pods are to be created, changed and deleted, and which node a Pod runs on. It is a function from objects to
// changes; reading and writing them is its caller's.
package controller

import (
	"encoding/json"
	"hash/fnv"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Cluster is the state that is decided by. Pods have their status; a Pod whose object is gone while its containers end
// has a deletionTimestamp. Plan does not change the objects.
type Cluster struct {
	Nodes        []*corev1.Node
	Pods         []*corev1.Pod
	Deployments  []*appsv1.Deployment
	ReplicaSets  []*appsv1.ReplicaSet
	StatefulSets []*appsv1.StatefulSet
	DaemonSets   []*appsv1.DaemonSet
	Jobs         []*batchv1.Job
}

// Object is an object of the API with its metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Plan is what to change next. When it has been done, and Pods have started or ended, there may be another one.
type Plan struct {
	Put    []Object  // to be created, or to replace the object of that kind and name
	Delete []Object  // to be deleted, unless another object of the name has been made since
	Bind   []Binding // Pods that get their node
}

// Binding assigns a Pod to a node.
type Binding struct {
	Pod  *corev1.Pod
	Node string
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Put)+len(p.Delete)+len(p.Bind) == 0 }

// planner makes one plan.
type planner struct {
	*Cluster
	Plan
	scheduled []*corev1.Pod // Pods that the plan itself adds, or gives a node
}

// Plan decides what to change next. It is empty where nothing can be done before a Pod starts, ends or is deleted.
func (c *Cluster) Plan() Plan {
	p := &planner{Cluster: c}
	p.collectGarbage()
	for _, d := range c.Deployments {
		p.deployment(d)
	}
	for _, rs := range c.ReplicaSets {
		p.replicaSet(rs)
	}
	for _, s := range c.StatefulSets {
		p.statefulSet(s)
	}
	for _, d := range c.DaemonSets {
		p.daemonSet(d)
	}
	for _, j := range c.Jobs {
		p.job(j)
	}
	p.bind()
	return p.Plan
}

// collectGarbage deletes what has a controller that is not there.
func (p *planner) collectGarbage() {
	owners := map[types.UID]bool{}
	names := map[string]bool{}
	for _, o := range p.workloads() {
		owners[o.GetUID()] = true
		names[key(Kind(o), o.GetNamespace(), o.GetName())] = true
	}
	orphan := func(o Object) bool {
		ref := metav1.GetControllerOf(o)
		if ref == nil || o.GetDeletionTimestamp() != nil || !IsWorkload(ref.APIVersion, ref.Kind) {
			return false
		}
		return !owners[ref.UID] || !names[key(ref.Kind, o.GetNamespace(), ref.Name)]
	}
	for _, rs := range p.ReplicaSets {
		if orphan(rs) {
			p.Delete = append(p.Delete, rs)
		}
	}
	for _, pod := range p.Pods {
		if orphan(pod) {
			p.Delete = append(p.Delete, pod)
		}
	}
}

func key(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// workloads are the objects that own Pods, or ReplicaSets.
func (c *Cluster) workloads() []Object {
	var all []Object
	for _, o := range c.Deployments {
		all = append(all, o)
	}
	for _, o := range c.ReplicaSets {
		all = append(all, o)
	}
	for _, o := range c.StatefulSets {
		all = append(all, o)
	}
	for _, o := range c.DaemonSets {
		all = append(all, o)
	}
	for _, o := range c.Jobs {
		all = append(all, o)
	}
	return all
}

// Kind is the kind of an object that this package knows, empty for others.
func Kind(o Object) string {
	switch o.(type) {
	case *corev1.Pod:
		return "Pod"
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.ReplicaSet:
		return "ReplicaSet"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *batchv1.Job:
		return "Job"
	}
	return ""
}

// IsWorkload reports whether objects of a kind own Pods here.
func IsWorkload(apiVersion, kind string) bool {
	switch apiVersion {
	case "apps/v1":
		return slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"}, kind)
	case "batch/v1":
		return kind == "Job"
	}
	return false
}

// owned reports whether o is controlled by owner.
func owned(o, owner Object) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.UID == owner.GetUID() && ref.Kind == Kind(owner) && ref.Name == owner.GetName() &&
		o.GetNamespace() == owner.GetNamespace()
}

// PodsOf are the Pods that an object controls, those included that are on their way out.
func (c *Cluster) PodsOf(owner Object) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range c.Pods {
		if owned(pod, owner) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// IsReady reports whether a Pod is ready, and not being deleted.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// isActive reports whether a Pod has not ended and is not being deleted.
func isActive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded &&
		pod.Status.Phase != corev1.PodFailed
}

func active(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !isActive(pod) })
}

func count[T any](items []T, is func(T) bool) (n int32) {
	for _, i := range items {
		if is(i) {
			n++
		}
	}
	return n
}

// hashOf tells Pod templates apart, in the characters that Kubernetes uses in names.
func hashOf(template *corev1.PodTemplateSpec) string {
	data, err := json.Marshal(template)
	if err != nil {
		data = []byte(err.Error()) // the type holds nothing that can't be encoded
	}
	h := fnv.New32a()
	h.Write(data)
	return rand.SafeEncodeString(uint32Text(h.Sum32()))
}

// value is what an optional field holds, or its default.
func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
