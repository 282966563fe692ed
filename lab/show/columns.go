package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/cluster"
)

// columns are those of a kind between NAME and AGE, and those that -o wide adds.
func columns(object any) (header, wide []string) {
	containers := []string{"CONTAINERS", "IMAGES", "SELECTOR"}
	switch object.(type) {
	case *corev1.Pod:
		return []string{"READY", "STATUS", "RESTARTS"}, []string{"IP", "NODE", "NOMINATED NODE", "READINESS GATES"}
	case *corev1.Service:
		return []string{"TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)"}, []string{"SELECTOR"}
	case *corev1.Node:
		return []string{"STATUS", "ROLES"}, []string{"INTERNAL-IP", "POD-CIDRS"}
	case *appsv1.Deployment:
		return []string{"READY", "UP-TO-DATE", "AVAILABLE"}, containers
	case *appsv1.ReplicaSet:
		return []string{"DESIRED", "CURRENT", "READY"}, containers
	case *appsv1.StatefulSet:
		return []string{"READY"}, containers[:2]
	case *appsv1.DaemonSet:
		return []string{"DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE", "NODE SELECTOR"}, containers
	case *batchv1.Job:
		return []string{"STATUS", "COMPLETIONS"}, containers
	case *cluster.EndpointSlice:
		return []string{"ADDRESSTYPE", "PORTS", "ENDPOINTS"}, nil
	}
	return nil, nil
}

// cells are the item's values for columns.
func (i Item) cells() (cells, wide []string) {
	switch o := i.Object.(type) {
	case *corev1.Pod:
		return i.pod(o)
	case *corev1.Service:
		return []string{string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)), orNone(clusterIP(o)), externalIP(o),
				servicePorts(o)},
			[]string{pairs(o.Spec.Selector, ",")}
	case *corev1.Node:
		return []string{nodeStatus(o), orNone(roles(o))}, []string{orNone(internalIP(o)),
			orNone(strings.Join(o.Spec.PodCIDRs, ","))}
	case *appsv1.Deployment:
		st := o.Status
		return []string{of(st.ReadyReplicas, o.Spec.Replicas), fmt.Sprint(st.UpdatedReplicas),
				fmt.Sprint(st.AvailableReplicas)},
			template(&o.Spec.Template, o.Spec.Selector)
	case *appsv1.ReplicaSet:
		return []string{fmt.Sprint(value(o.Spec.Replicas)), fmt.Sprint(o.Status.Replicas),
				fmt.Sprint(o.Status.ReadyReplicas)},
			template(&o.Spec.Template, o.Spec.Selector)
	case *appsv1.StatefulSet:
		return []string{of(o.Status.ReadyReplicas, o.Spec.Replicas)}, template(&o.Spec.Template, o.Spec.Selector)[:2]
	case *appsv1.DaemonSet:
		st := o.Status
		return []string{
			fmt.Sprint(st.DesiredNumberScheduled), fmt.Sprint(st.CurrentNumberScheduled), fmt.Sprint(st.NumberReady),
			fmt.Sprint(st.UpdatedNumberScheduled), fmt.Sprint(st.NumberAvailable),
			pairs(o.Spec.Template.Spec.NodeSelector, ","),
		}, template(&o.Spec.Template, o.Spec.Selector)
	case *batchv1.Job:
		return []string{jobStatus(o), of(o.Status.Succeeded, o.Spec.Completions)}, template(&o.Spec.Template,
			o.Spec.Selector)
	case *cluster.EndpointSlice:
		return slice(o), nil
	}
	return nil, nil
}

func (i Item) pod(o *corev1.Pod) (cells, wide []string) {
	ready := 0
	for _, c := range o.Status.ContainerStatuses {
		if c.Ready {
			ready++
		}
	}
	var ips []string
	for _, ip := range o.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return []string{fmt.Sprintf("%d/%d", ready, len(o.Spec.Containers)), podStatus(o), fmt.Sprint(i.Restarts)},
		[]string{orNone(strings.Join(ips, ",")), orNone(o.Spec.NodeName), "<none>", "<none>"}
}

// podStatus is what kubectl shows: the phase, or more exactly what its containers do.
func podStatus(o *corev1.Pod) string {
	if o.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, c := range o.Status.ContainerStatuses {
		t := c.State.Terminated
		if t == nil || o.Status.Phase != corev1.PodRunning {
			continue
		}
		if c.RestartCount > 0 {
			return "CrashLoopBackOff"
		}
		if t.ExitCode != 0 {
			return "Error"
		}
	}
	switch o.Status.Phase {
	case corev1.PodSucceeded:
		return "Completed"
	case corev1.PodFailed:
		return "Error"
	case corev1.PodPending:
		if o.Spec.NodeName != "" && len(o.Status.PodIPs) > 0 {
			return "ContainerCreating"
		}
	}
	return string(cmp.Or(o.Status.Phase, corev1.PodPending))
}

func clusterIP(o *corev1.Service) string {
	if o.Spec.ClusterIP == "" && len(o.Spec.ClusterIPs) > 0 {
		return o.Spec.ClusterIPs[0]
	}
	return o.Spec.ClusterIP
}

func externalIP(o *corev1.Service) string {
	ips := slices.Clone(o.Spec.ExternalIPs)
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		ips = append(ips, cmp.Or(ingress.IP, ingress.Hostname))
	}
	switch {
	case o.Spec.Type == corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case len(ips) == 0 && o.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "<pending>"
	}
	return orNone(strings.Join(ips, ","))
}

func servicePorts(o *corev1.Service) string {
	var ports []string
	for _, p := range o.Spec.Ports {
		text := fmt.Sprint(p.Port)
		if p.NodePort != 0 {
			text += fmt.Sprintf(":%d", p.NodePort)
		}
		ports = append(ports, text+"/"+string(cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return orNone(strings.Join(ports, ","))
}

func nodeStatus(o *corev1.Node) string {
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			status = "Ready"
		case c.Type == corev1.NodeReady:
			status = "NotReady"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func roles(o *corev1.Node) string {
	var all []string
	for label := range o.Labels {
		if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
			all = append(all, role)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func internalIP(o *corev1.Node) string {
	var all []string
	for _, a := range o.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			all = append(all, a.Address)
		}
	}
	return strings.Join(all, ",")
}

func jobStatus(o *batchv1.Job) string {
	for _, c := range o.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			return string(c.Type)
		}
	}
	return "Running"
}

func slice(o *cluster.EndpointSlice) []string {
	var ports, endpoints []string
	for _, p := range o.Ports {
		ports = append(ports, fmt.Sprint(p.Port))
	}
	for n, e := range o.Endpoints {
		if n == 3 {
			endpoints = append(endpoints, fmt.Sprintf("+ %d more...", len(o.Endpoints)-n))
			break
		}
		endpoints = append(endpoints, e.Address.String())
	}
	unset := func(text string) string {
		if text == "" {
			return "<unset>"
		}
		return text
	}
	return []string{o.AddressType, unset(strings.Join(ports, ",")), unset(strings.Join(endpoints, ","))}
}

// template are the cells of the containers and the selector.
func template(t *corev1.PodTemplateSpec, s *metav1.LabelSelector) []string {
	var names, images []string
	for _, c := range t.Spec.Containers {
		names = append(names, c.Name)
		images = append(images, orNone(c.Image))
	}
	selector := "<none>"
	if s != nil {
		selector = orNone(metav1.FormatLabelSelector(s))
	}
	return []string{strings.Join(names, ","), strings.Join(images, ","), selector}
}

func value(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func of(n int32, all *int32) string { return fmt.Sprintf("%d/%d", n, value(all)) }
