package controller

import (
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

func uint32Text(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// randomName is the name of a Pod that has no name of its own, as generateName makes it.
func randomName(owner string) string {
	const suffix, most = 5, 63
	return strings.TrimRight(owner[:min(len(owner), most-suffix-1)], "-.") + "-" + rand.String(suffix)
}

// newPod is a Pod of a template. It has no node yet.
func newPod(owner Object, gvk schema.GroupVersionKind, template *corev1.PodTemplateSpec, name string) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			Name:            name,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	return pod
}

// addPod plans a new Pod, on the node that suits it best, or on none where none suits it yet.
func (p *planner) addPod(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		pod.Spec.NodeName, _ = p.nodeFor(pod) // the Pod stays Pending, and Unschedulable has the reason
	}
	p.Put = append(p.Put, pod)
	p.scheduled = append(p.scheduled, pod)
}

func (p *planner) deletePods(pods ...*corev1.Pod) {
	for _, pod := range pods {
		p.Delete = append(p.Delete, pod)
	}
}
