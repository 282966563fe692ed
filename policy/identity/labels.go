package identity

import (
	"slices"
	"strings"

	"myelin/cluster"
)

// Keys that Cilium derives labels under, and that policies select by: the
// namespace's name, its labels (by prefix), the pod's service account and
// cluster, and what else begins as these do, which no label set has.
const (
	NamespaceKey       = "io.kubernetes.pod.namespace"
	NamespaceLabelsKey = "io.cilium.k8s.namespace.labels."
	DerivedPolicyKey   = "io.cilium.k8s.policy."
	ServiceAccountKey  = DerivedPolicyKey + "serviceaccount"
	ClusterKey         = DerivedPolicyKey + "cluster"
)

// Labels is the label set of a pod in its namespace, sorted. All of the pod's
// labels count: Cilium leaves some out to save numbers, and then policies that
// select by them match nothing. ns may be nil while the Namespace isn't known;
// clusterName is what the pod's cluster is called, empty: not at all.
func Labels(pod *cluster.Pod, ns *cluster.Namespace, clusterName string) []string {
	out := make([]string, 0, len(pod.Labels)+6)
	for k, v := range pod.Labels {
		// A pod must not claim another namespace, account or cluster by a label of its own.
		if k != NamespaceKey && !strings.HasPrefix(k, NamespaceLabelsKey) && !strings.HasPrefix(k, DerivedPolicyKey) {
			out = append(out, "k8s:"+k+"="+v)
		}
	}
	out = append(out, "k8s:"+NamespaceKey+"="+pod.Namespace)
	if pod.ServiceAccount != "" {
		out = append(out, "k8s:"+ServiceAccountKey+"="+pod.ServiceAccount)
	}
	if clusterName != "" {
		out = append(out, "k8s:"+ClusterKey+"="+clusterName)
	}
	if ns != nil {
		for k, v := range ns.Labels {
			out = append(out, "k8s:"+NamespaceLabelsKey+k+"="+v)
		}
	} else {
		// What the API server gives each Namespace.
		out = append(out, "k8s:"+NamespaceLabelsKey+"kubernetes.io/metadata.name="+pod.Namespace)
	}
	slices.Sort(out)
	return out
}

// labelKey is a label set as one key; labels have no line breaks in them.
func labelKey(labels []string) string { return strings.Join(labels, "\n") }
