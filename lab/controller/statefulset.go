package controller

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// statefulSet keeps Pods with numbers: in their order one after another, and updates them from the last one on.
func (p *planner) statefulSet(s *appsv1.StatefulSet) {
	first := int32(0)
	if s.Spec.Ordinals != nil {
		first = s.Spec.Ordinals.Start
	}
	end := first + value(s.Spec.Replicas, 1)
	inOrder := s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	have := map[int32]*corev1.Pod{}
	var others []int32
	for _, pod := range p.PodsOf(s) {
		n, ok := ordinal(s, pod)
		if !ok {
			continue
		}
		have[n] = pod
		if n < first || n >= end {
			others = append(others, n)
		}
	}
	steady := true
	for n := first; n < end; n++ {
		p.ordinalPod(s, n, have[n])
		if have[n] == nil || !IsReady(have[n]) {
			steady = false
			if inOrder {
				break
			}
		}
	}
	slices.Sort(others)
	for _, n := range slices.Backward(others) {
		if inOrder && !steady {
			break
		}
		if have[n].DeletionTimestamp == nil {
			p.deletePods(have[n])
		}
		steady = steady && !inOrder
	}
	if len(others) == 0 {
		p.updateStatefulSet(s, have, first, end)
	}
}

// ordinalPod makes the Pod of a number, or has it made anew when it has ended.
func (p *planner) ordinalPod(s *appsv1.StatefulSet, n int32, pod *corev1.Pod) {
	switch {
	case pod == nil && !p.exists(s.Namespace, ordinalName(s, n)):
		p.addPod(p.newOrdinal(s, n))
	case pod != nil && pod.DeletionTimestamp == nil && !isActive(pod):
		p.deletePods(pod)
	}
}

// exists reports whether a Pod of the name is there, whoever made it: then another one has to wait.
func (p *planner) exists(namespace, name string) bool {
	return slices.ContainsFunc(
		p.Pods,
		func(pod *corev1.Pod) bool { return pod.Namespace == namespace && pod.Name == name },
	)
}

// updateStatefulSet deletes a Pod of an older template, from the last number on, while all after it are ready. One that
// is not ready itself never has to wait for those before it.
func (p *planner) updateStatefulSet(s *appsv1.StatefulSet, have map[int32]*corev1.Pod, first, end int32) {
	if s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	from := first
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
		from = max(from, value(r.Partition, 0))
	}
	hash := hashOf(&s.Spec.Template)
	for n := end - 1; n >= from; n-- {
		pod := have[n]
		switch {
		case pod != nil && isActive(pod) && pod.Labels[appsv1.ControllerRevisionHashLabelKey] != hash:
			p.deletePods(pod)
			return
		case pod == nil || !IsReady(pod):
			p.replaceBroken(have, first, n, hash)
			return
		}
	}
}

// replaceBroken deletes Pods of an older template before number n that are not ready, so that a template that can't
// work gets out of the way of the next one.
func (p *planner) replaceBroken(have map[int32]*corev1.Pod, first, n int32, hash string) {
	for i := first; i < n; i++ {
		pod := have[i]
		if pod != nil && isActive(pod) && !IsReady(pod) && pod.Labels[appsv1.ControllerRevisionHashLabelKey] != hash {
			p.deletePods(pod)
		}
	}
}

func (p *planner) newOrdinal(s *appsv1.StatefulSet, n int32) *corev1.Pod {
	name := ordinalName(s, n)
	pod := newPod(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet"), &s.Spec.Template, name)
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hashOf(&s.Spec.Template)
	pod.Labels[appsv1.StatefulSetPodNameLabel] = name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(int(n))
	pod.Spec.Hostname, pod.Spec.Subdomain = name, s.Spec.ServiceName
	return pod
}

func ordinalName(s *appsv1.StatefulSet, n int32) string { return s.Name + "-" + strconv.Itoa(int(n)) }

func ordinal(s *appsv1.StatefulSet, pod *corev1.Pod) (int32, bool) {
	text, ok := strings.CutPrefix(pod.Name, s.Name+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), ok && err == nil && n >= 0
}
