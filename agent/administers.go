package agent

import (
	"myelin/cluster"
	"myelin/endpoint"
)

// administers reports whether a pod may change its own network namespace. One
// whose Pod object is not known yet may.
func (a *Agent) administers(e *endpoint.Endpoint) bool {
	pod, _, ok := a.cluster.Pods.Get(a.db.ReadTxn(), cluster.PodByKey(e.Namespace, e.Pod))
	return !ok || pod.NetAdmin
}
