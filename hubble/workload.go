package hubble

import (
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/cluster"
)

// Workload returns the controller of a pod by the labels that controllers set: tables of the cluster have no owner
// references. A pod without such labels is its own workload.
func Workload(pod *cluster.Pod) *flowpb.Workload {
	hash := pod.Labels["pod-template-hash"]
	job := pod.Labels["batch.kubernetes.io/job-name"]
	switch {
	case hash != "" && strings.Contains(pod.Name, "-"+hash+"-"):
		name, _, _ := strings.Cut(pod.Name, "-"+hash+"-")
		return &flowpb.Workload{Kind: "Deployment", Name: name}
	case pod.Labels["statefulset.kubernetes.io/pod-name"] != "":
		return &flowpb.Workload{Kind: "StatefulSet", Name: withoutLast(pod.Name)}
	case pod.Labels["controller-revision-hash"] != "":
		return &flowpb.Workload{Kind: "DaemonSet", Name: withoutLast(pod.Name)}
	case job != "":
		return &flowpb.Workload{Kind: "Job", Name: job}
	}
	return &flowpb.Workload{Kind: "Pod", Name: pod.Name}
}

// withoutLast is a name without what follows its last hyphen.
func withoutLast(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		return name[:i]
	}
	return name
}
