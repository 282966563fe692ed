package service

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"myelin/cluster"
)

// prefix of the annotations that mean something here, as Cilium names them.
const prefix = "service.cilium.io/"

// wishes are what a Service's annotations say.
type wishes struct {
	only       Type // 0: any
	algorithm  Algorithm
	forwarding Forwarding
	deny       bool
	elsewhere  bool // the Service is for other nodes
	problems   []string
}

func (w *wishes) problem(key, format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("metadata.annotations[%s%s]: ", prefix, key)+fmt.Sprintf(format, args...))
}

// pick is value if it is allowed, or the zero value, with a problem.
func pick[T ~string](w *wishes, key, value string, allowed ...T) T {
	if slices.Contains(allowed, T(value)) {
		return T(value)
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	w.problem(key, "%q is none of %s", value, strings.Join(names, ", "))
	return ""
}

// wishesOf reads the annotations. A bad value is a problem, and as good as
// none.
func (b *builder) wishesOf(obj *cluster.Service) wishes {
	var w wishes
	for _, full := range slices.Sorted(maps.Keys(obj.Annotations)) {
		key, ok := strings.CutPrefix(full, prefix)
		if !ok {
			continue
		}
		value := obj.Annotations[full]
		switch key {
		case "lb-algorithm":
			w.algorithm = pick(&w, key, value, Random, Maglev, LeastConnections)
			if b.FixedAlgorithm && w.algorithm != "" {
				w.algorithm = ""
				w.problem(key, "has no effect: bpf.lbAlgorithmAnnotation is false")
			}
		case "forwarding-mode":
			w.forwarding = pick(&w, key, value, SNAT, DSR, Hybrid)
			if b.FixedForwarding && w.forwarding != "" {
				w.forwarding = ""
				w.problem(key, "has no effect: bpf.lbModeAnnotation is false")
			}
		case "src-ranges-policy":
			w.deny = pick(&w, key, value, "allow", "deny") == "deny"
		case "type":
			w.only = typeOf(pick(&w, key, value, "ClusterIP", "NodePort", "LoadBalancer"))
		case "node":
			w.elsewhere = w.elsewhere || b.Facts.Labels[full] != value
		case "node-selector":
			selector, err := labels.Parse(value)
			if err != nil {
				w.problem(key, "%q is not a label selector: %v", value, err)
				continue
			}
			w.elsewhere = w.elsewhere || !selector.Matches(labels.Set(b.Facts.Labels))
		case "affinity": // of clusters to each other, and here is one
			pick(&w, key, value, "local", "remote", "none")
		case "global", "shared", "global-sync-endpoint-slices": // as well
			if _, err := strconv.ParseBool(value); err != nil {
				w.problem(key, "%q is neither true nor false", value)
			}
		case "proxy-delegation":
			if pick(&w, key, value, "none", "delegate-if-local") == "delegate-if-local" {
				w.problem(key, "delegation to a proxy is not done")
			}
		case "weight":
			w.problem(key, "belongs on EndpointSlices")
		default:
			w.problem(key, "is not known")
		}
	}
	return w
}

// typeOf is the type that a Service object says.
func typeOf(name string) Type {
	for _, t := range []Type{ClusterIP, NodePort, LoadBalancer} {
		if t.String() == name {
			return t
		}
	}
	return 0
}

// weightOf is the weight of a slice's endpoints. 0 means maintenance.
func weightOf(slice *cluster.EndpointSlice) (uint16, string) {
	value, ok := slice.Annotations[prefix+"weight"]
	if !ok {
		return DefaultWeight, ""
	}
	weight, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return DefaultWeight, fmt.Sprintf("EndpointSlice %s: metadata.annotations[%sweight]: %q is not in 0..65535", slice.Key(), prefix, value)
	}
	return uint16(weight), ""
}
