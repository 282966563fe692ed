package agent

import (
	"myelin/cluster"
	"myelin/endpoint"
)

// administers reports whether a pod may change its own network namespace. One
// whose Pod object is not known yet may.
func (ep *endpoints) administers(e *endpoint.Endpoint) bool {
	pod, _, ok := ep.Cluster.Pods.Get(ep.DB.ReadTxn(), cluster.PodByKey(e.Namespace, e.Pod))
	return !ok || pod.NetAdmin
}
