package lab

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// statusPath is where kubelet's part of a Pod is: the object with its status, for the agents of all nodes.
func (l *Lab) statusPath(s PodState) string {
	return l.path("manifests", "status", shorten(s.Node+"_"+podFile(s.Namespace, s.Name))+".yaml")
}

// writeStatus writes a Pod with its status, as kubelet would to the API server.
func (l *Lab) writeStatus(s PodState) error {
	data, err := yaml.Marshal(l.statusObject(s))
	if err != nil {
		return err
	}
	return writeFile(l.statusPath(s), data)
}

// statusObject is a Pod of which the state alone is known.
func (l *Lab) statusObject(s PodState) *corev1.Pod {
	hosts := l.Node(s.Node).Addrs()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID)},
		Spec:       corev1.PodSpec{NodeName: s.Node, HostNetwork: s.HostNetwork},
		Status: corev1.PodStatus{
			Phase:   corev1.PodPhase(s.Phase),
			Message: s.Message,
			HostIP:  firstString(hosts),
			PodIP:   firstString(s.Addresses),
		},
	}
	for _, a := range hosts {
		pod.Status.HostIPs = append(pod.Status.HostIPs, corev1.HostIP{IP: a.String()})
	}
	for _, a := range s.Addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	if !s.Started.IsZero() {
		pod.Status.StartTime = &metav1.Time{Time: s.Started}
	}
	ready := s.Phase == "Running"
	for _, c := range s.Containers {
		status := containerStatus(c)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Name})
		if c.Init {
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, status)
			continue
		}
		ready = ready && status.Ready
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		condition.Status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{condition}
	return pod
}

func containerStatus(c ContainerState) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, RestartCount: int32(c.Restarts)}
	switch {
	case c.Exited:
		s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(c.ExitCode), Message: c.Message}
	case c.Process.PID == 0:
		s.State.Waiting = &corev1.ContainerStateWaiting{}
	default:
		running := true
		s.State.Running, s.Ready, s.Started = &corev1.ContainerStateRunning{}, true, &running
	}
	return s
}

func firstString(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return ""
	}
	return addrs[0].String()
}
