package bandwidth

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"myelin/cluster"
)

// Bounds of a limit in bit/s, as Kubernetes has them.
const (
	minRate = 1_000
	maxRate = 1_000_000_000_000_000
)

// rates are the limits of a pod in bit/s, 0: none, and its priority.
type rates struct {
	egress, ingress uint64
	priority        string // as parsePriority returns it
	problems        []string
}

// annotationRates reads the annotations of a Pod. An invalid value is a problem, and no limit.
func annotationRates(pod *cluster.Pod) (r rates) {
	r.egress = annotation(&r, pod, cluster.EgressBandwidth, parseRate)
	r.ingress = annotation(&r, pod, cluster.IngressBandwidth, parseRate)
	r.priority = annotation(&r, pod, cluster.NetworkPriority, parsePriority)
	return r
}

func annotation[V any](r *rates, pod *cluster.Pod, name string, parse func(string) (V, error)) (value V) {
	text, ok := pod.Annotations[name]
	if !ok {
		return value
	}
	value, err := parse(text)
	if err != nil {
		r.problems = append(r.problems, fmt.Sprintf("Pod %s: metadata.annotations[%s]: %v", pod.Key(), name, err))
	}
	return value
}

// parseRate reads a quantity of bit/s such as "10M".
func parseRate(text string) (uint64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no quantity of bits per second, such as 10M", text)
	}
	rate, ok := q.AsInt64()
	if !ok {
		rate = q.Value() // rounded up, and the largest number where it is larger
	}
	if rate < minRate || rate > maxRate {
		return 0, fmt.Errorf("%q is not in 1k..1P", text)
	}
	return uint64(rate), nil
}
