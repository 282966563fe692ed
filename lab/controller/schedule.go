package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// nodeLabels are a node's, with those that a kubelet adds.
func nodeLabels(node *corev1.Node) map[string]string {
	labels := map[string]string{corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux"}
	maps.Copy(labels, node.Labels)
	return labels
}

// bind gives nodes to Pods that have none.
func (p *planner) bind() {
	for _, pod := range p.Pods {
		if pod.Spec.NodeName != "" || !isActive(pod) ||
			slices.ContainsFunc(p.Delete, func(o Object) bool { return o == pod }) {
			continue
		}
		node, err := p.nodeFor(pod)
		if err != nil {
			continue
		}
		p.Bind = append(p.Bind, Binding{Pod: pod, Node: node})
		bound := pod.DeepCopy()
		bound.Spec.NodeName = node
		p.scheduled = append(p.scheduled, bound)
	}
}

// Unschedulable says why no node suits a Pod that has none, nil if one does.
func (c *Cluster) Unschedulable(pod *corev1.Pod) error {
	if pod.Spec.NodeName != "" {
		return nil
	}
	p := &planner{Cluster: c}
	_, err := p.nodeFor(pod)
	return err
}

// nodeFor chooses a Pod's node: of those that suit it, the one with the fewest Pods of the same controller, then with
// the fewest Pods, then the first one by name.
func (p *planner) nodeFor(pod *corev1.Pod) (string, error) {
	type candidate struct {
		name        string
		siblings, n int
	}
	var fit []candidate
	reasons := map[string]int{}
	for _, node := range p.Nodes {
		if reason := p.unsuitable(node, pod); reason != "" {
			reasons[reason]++
			continue
		}
		c := candidate{name: node.Name}
		for _, other := range p.podsOn(node.Name) {
			c.n++
			if controllerOf(other) != "" && controllerOf(other) == controllerOf(pod) {
				c.siblings++
			}
		}
		fit = append(fit, c)
	}
	if len(fit) == 0 {
		text := fmt.Sprintf("0/%d nodes are available", len(p.Nodes))
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			text += fmt.Sprintf(": %d %s", reasons[reason], reason)
		}
		return "", errors.New(text)
	}
	best := slices.MinFunc(fit, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.siblings, b.siblings), cmp.Compare(a.n, b.n), strings.Compare(a.name, b.name))
	})
	return best.name, nil
}

// unsuitable says why a Pod can't run on a node, in the scheduler's words; empty: it can.
func (p *planner) unsuitable(node *corev1.Node, pod *corev1.Pod) string {
	if reason := mismatch(node, pod); reason != "" {
		return reason
	}
	for _, other := range p.podsOn(node.Name) {
		if other.Name == pod.Name && other.Namespace == pod.Namespace {
			continue
		}
		for _, port := range hostPorts(pod) {
			if slices.Contains(hostPorts(other), port) {
				return "node(s) didn't have free ports for the requested pod ports"
			}
		}
	}
	return ""
}

// mismatch is unsuitable by what node and Pod say, whatever else runs on the node.
func mismatch(node *corev1.Node, pod *corev1.Pod) string {
	labelled := node.DeepCopy()
	labelled.Labels = nodeLabels(node)
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(labelled); err != nil || !ok {
		return "node(s) didn't match Pod's node affinity/selector"
	}
	repels := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		taints = append(
			slices.Clone(taints),
			corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
		)
	}
	taint, found := scheduling.FindMatchingUntoleratedTaint(
		klog.Background(),
		taints,
		pod.Spec.Tolerations,
		repels,
		false,
	)
	if found {
		return fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value)
	}
	return ""
}

// podsOn are the Pods that run, or are planned to, on a node.
func (p *planner) podsOn(node string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range slices.Concat(p.Pods, p.scheduled) {
		if pod.Spec.NodeName == node && isActive(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

func controllerOf(pod *corev1.Pod) string {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return ""
	}
	return key(ref.Kind, pod.Namespace, ref.Name)
}

// hostPorts are the ports that a Pod needs on its node, "TCP/80".
func hostPorts(pod *corev1.Pod) []string {
	var ports []string
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			n := port.HostPort
			if pod.Spec.HostNetwork && n == 0 {
				n = port.ContainerPort
			}
			if n != 0 {
				ports = append(ports, fmt.Sprintf("%s/%d", cmp.Or(port.Protocol, corev1.ProtocolTCP), n))
			}
		}
	}
	return ports
}
