package controller

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// revisionAnnotation numbers the ReplicaSets of a Deployment.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// replicaSetsOf are a Deployment's: the one of its template, nil if there is none, and all others.
func (c *Cluster) replicaSetsOf(d *appsv1.Deployment) (current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	hash := hashOf(&d.Spec.Template)
	for _, rs := range c.ReplicaSets {
		switch {
		case !owned(rs, d):
		case rs.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == hash:
			current = rs
		default:
			old = append(old, rs)
		}
	}
	slices.SortFunc(old, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(revision(a), revision(b)) })
	return current, old
}

func revision(o metav1.Object) int {
	n, _ := strconv.Atoi(o.GetAnnotations()[revisionAnnotation]) // none, or not a number: before all others
	return n
}

// deployment scales the ReplicaSet of the template up, and all others down, within maxSurge and maxUnavailable.
func (p *planner) deployment(d *appsv1.Deployment) {
	current, old := p.replicaSetsOf(d)
	if d.Spec.Paused {
		return
	}
	want := value(d.Spec.Replicas, 1)
	surge, unavailable := limits(d, want)
	var oldReplicas, oldPods int32
	for _, rs := range old {
		oldReplicas += value(rs.Spec.Replicas, 1)
		oldPods += int32(len(p.PodsOf(rs)))
	}
	replicas := min(want, max(0, want+surge-oldReplicas))
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		replicas = want
		if oldReplicas+oldPods > 0 {
			replicas = 0
		}
		unavailable = want
	}
	switch {
	case current == nil:
		p.Put = append(p.Put, newReplicaSet(d, replicas, old))
	case value(current.Spec.Replicas, 1) < replicas || want < value(current.Spec.Replicas, 1):
		p.scale(current, replicas)
	}
	p.scaleDown(current, old, want-unavailable)
}

// scaleDown removes Pods of old ReplicaSets as far as enough Pods stay available; those that are not ready go first.
func (p *planner) scaleDown(current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, minAvailable int32) {
	available := int32(0)
	if current != nil {
		available = p.available(current)
	}
	for _, rs := range old {
		available += p.available(rs)
	}
	for _, rs := range old {
		replicas := value(rs.Spec.Replicas, 1)
		left := p.available(rs) // without those that are not ready
		spare := max(0, min(left, available-minAvailable))
		left -= spare
		available -= spare
		switch {
		case replicas == 0 && len(p.PodsOf(rs)) == 0:
			p.Delete = append(p.Delete, rs)
		case left < replicas:
			p.scale(rs, left)
		}
	}
}

// available counts a ReplicaSet's Pods that are ready and stay: those that it has too many are as good as deleted.
func (p *planner) available(rs *appsv1.ReplicaSet) int32 {
	return min(value(rs.Spec.Replicas, 1), count(p.PodsOf(rs), IsReady))
}

func (p *planner) scale(rs *appsv1.ReplicaSet, replicas int32) {
	scaled := rs.DeepCopy()
	scaled.Spec.Replicas = &replicas
	p.Put = append(p.Put, scaled)
}

// limits are maxSurge, rounded up, and maxUnavailable, rounded down, 25 % by default.
func limits(d *appsv1.Deployment, replicas int32) (surge, unavailable int32) {
	quarter := intstr.FromString("25%")
	rolling := d.Spec.Strategy.RollingUpdate
	if rolling == nil {
		rolling = &appsv1.RollingUpdateDeployment{}
	}
	up, err1 := intstr.GetScaledValueFromIntOrPercent(
		intstr.ValueOrDefault(rolling.MaxSurge, quarter),
		int(replicas),
		true,
	)
	down, err2 := intstr.GetScaledValueFromIntOrPercent(
		intstr.ValueOrDefault(rolling.MaxUnavailable, quarter),
		int(replicas),
		false,
	)
	if err1 != nil || err2 != nil || up == 0 && down == 0 {
		return 0, 1 // as Kubernetes resolves two zeros; Check refuses what is no number
	}
	return int32(up), int32(down)
}

func newReplicaSet(d *appsv1.Deployment, replicas int32, old []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	hash := hashOf(&d.Spec.Template)
	last := 0
	for _, rs := range old {
		last = max(last, revision(rs))
	}
	rs := &appsv1.ReplicaSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   d.Namespace,
			Name:        d.Name + "-" + hash,
			Labels:      maps.Clone(d.Spec.Template.Labels),
			Annotations: map[string]string{revisionAnnotation: strconv.Itoa(last + 1)},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment")),
			},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: d.Spec.Selector.DeepCopy(),
			Template: *d.Spec.Template.DeepCopy(),
		},
	}
	for _, labels := range []*map[string]string{&rs.Labels, &rs.Spec.Template.Labels, &rs.Spec.Selector.MatchLabels} {
		if *labels == nil {
			*labels = map[string]string{}
		}
		(*labels)[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	}
	return rs
}

// replicaSet makes as many Pods as there have to be.
func (p *planner) replicaSet(rs *appsv1.ReplicaSet) {
	if slices.ContainsFunc(p.Delete, func(o Object) bool { return o == rs }) {
		return
	}
	pods := p.PodsOf(rs)
	ended := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return isActive(pod) || pod.DeletionTimestamp != nil
	})
	p.deletePods(ended...)
	pods = active(pods)
	want := int(value(rs.Spec.Replicas, 1))
	for range want - len(pods) {
		p.addPod(newPod(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), &rs.Spec.Template, randomName(rs.Name)))
	}
	if len(pods) > want {
		p.deletePods(p.victims(pods)[:len(pods)-want]...)
	}
}

// victims orders Pods by which to delete first: without a node, not ready, on a node with more of them, younger.
func (p *planner) victims(pods []*corev1.Pod) []*corev1.Pod {
	rank := func(pod *corev1.Pod) int {
		switch {
		case pod.Spec.NodeName == "":
			return 0
		case !IsReady(pod):
			return 1
		}
		return 2
	}
	onNode := map[string]int{}
	for _, pod := range pods {
		onNode[pod.Spec.NodeName]++
	}
	started := func(pod *corev1.Pod) int64 {
		if pod.Status.StartTime == nil {
			return 0
		}
		return pod.Status.StartTime.UnixNano()
	}
	left := slices.Clone(pods)
	var sorted []*corev1.Pod
	for len(left) > 0 {
		next := slices.MinFunc(left, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]),
				cmp.Compare(started(b), started(a)), strings.Compare(a.Name, b.Name))
		})
		onNode[next.Spec.NodeName]--
		sorted = append(sorted, next)
		left = slices.DeleteFunc(left, func(pod *corev1.Pod) bool { return pod == next })
	}
	return sorted
}
