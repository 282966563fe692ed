package controller

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// nodesOf are the nodes that a DaemonSet has to run on.
func (c *Cluster) nodesOf(d *appsv1.DaemonSet) []string {
	pod := c.daemonPod(d, "")
	pod.Spec.Affinity = d.Spec.Template.Spec.Affinity
	var names []string
	for _, node := range c.Nodes {
		if (d.Spec.Template.Spec.NodeName == "" || d.Spec.Template.Spec.NodeName == node.Name) &&
			mismatch(node, pod) == "" {
			names = append(names, node.Name)
		}
	}
	return names
}

// daemonPod is a Pod for a node. Like Kubernetes' it tolerates a node that takes no other Pods.
func (c *Cluster) daemonPod(d *appsv1.DaemonSet, node string) *corev1.Pod {
	pod := newPod(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"), &d.Spec.Template, randomName(d.Name))
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hashOf(&d.Spec.Template)
	pod.Spec.NodeName = node
	for _, key := range []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable,
		corev1.TaintNodeDiskPressure,
		corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure,
	} {
		pod.Spec.Tolerations = append(
			pod.Spec.Tolerations,
			corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists},
		)
	}
	if pod.Spec.HostNetwork {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations,
			corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists})
	}
	return pod
}

// daemonSet runs one Pod on each node that is to have one, and replaces those of an older template node by node.
func (p *planner) daemonSet(d *appsv1.DaemonSet) {
	byNode := map[string][]*corev1.Pod{}
	for _, pod := range p.PodsOf(d) {
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	nodes := p.nodesOf(d)
	for node, pods := range byNode {
		if !slices.Contains(nodes, node) {
			p.deletePods(active(pods)...)
		}
	}
	unavailable := 0
	var old []*corev1.Pod
	hash := hashOf(&d.Spec.Template)
	for _, node := range nodes {
		pods := active(byNode[node])
		for _, pod := range byNode[node] {
			if !isActive(pod) && pod.DeletionTimestamp == nil {
				p.deletePods(pod) // it has ended, and makes room for another one
			}
		}
		if len(pods) == 0 {
			p.addPod(p.daemonPod(d, node))
			unavailable++
			continue
		}
		pods = p.victims(pods)
		p.deletePods(pods[:len(pods)-1]...)
		pod := pods[len(pods)-1]
		ready := IsReady(pod)
		if !ready {
			unavailable++
		}
		switch {
		case pod.Labels[appsv1.ControllerRevisionHashLabelKey] == hash ||
			d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType:
		case !ready:
			p.deletePods(pod) // it is missed by no one
		default:
			old = append(old, pod)
		}
	}
	p.deletePods(old[:max(0, min(len(old), maxUnavailable(d, len(nodes))-unavailable))]...)
}

// maxUnavailable is how many nodes may lack a Pod that is ready while Pods are replaced, 1 by default.
func maxUnavailable(d *appsv1.DaemonSet, nodes int) int {
	one := intstr.FromInt32(1)
	most := &one
	if r := d.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		most = r.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(most, nodes, true)
	if err != nil {
		return 1 // Check refuses it
	}
	return max(1, n)
}
