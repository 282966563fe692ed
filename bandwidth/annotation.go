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

// rates are the limits of a pod in bit/s, 0: none.
type rates struct {
	egress, ingress uint64
	problems        []string
}

// annotationRates reads the annotations of a Pod. An invalid value is a problem, and no limit.
func annotationRates(pod *cluster.Pod) (r rates) {
	read := func(name string) uint64 {
		text, ok := pod.Annotations[name]
		if !ok {
			return 0
		}
		rate, err := parseRate(text)
		if err != nil {
			r.problems = append(r.problems, fmt.Sprintf("Pod %s: metadata.annotations[%s]: %v", pod.Key(), name, err))
		}
		return rate
	}
	r.egress, r.ingress = read(cluster.EgressBandwidth), read(cluster.IngressBandwidth)
	return r
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
