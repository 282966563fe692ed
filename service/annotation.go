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

// prefix is that of Cilium's annotations for Services.
const prefix = "service.cilium.io/"

// ownPrefix is that of annotations that Cilium does not have.
const ownPrefix = "service.myelin.io/"

// annotations are the options that the annotations of a Service set.
type annotations struct {
	only       Type // 0: any
	algorithm  Algorithm
	forwarding Forwarding
	deny       bool
	otherNode  bool // the Service is for other nodes
	// serverIDLength is that of QUIC connection IDs, in octets; 0: they select no backends.
	serverIDLength uint8
	problems       []string
}

func (w *annotations) problem(key, format string, args ...any) {
	w.problemAt(prefix+key, format, args...)
}

// problemAt is problem for an annotation with any prefix.
func (w *annotations) problemAt(name, format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("metadata.annotations[%s]: ", name)+fmt.Sprintf(format, args...))
}

// pick returns value if it is allowed, and otherwise the zero value and adds a problem.
func pick[T ~string](w *annotations, key, value string, allowed ...T) T {
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

// annotationOptions reads the annotations. An invalid value is a problem, and otherwise ignored.
func (b *builder) annotationOptions(obj *cluster.Service) annotations {
	var w annotations
	for _, full := range slices.Sorted(maps.Keys(obj.Annotations)) {
		value := obj.Annotations[full]
		key, ok := strings.CutPrefix(full, prefix)
		if !ok {
			b.ownAnnotation(&w, full, value)
			continue
		}
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
			w.otherNode = w.otherNode || b.node.Labels[full] != value
		case "node-selector":
			selector, err := labels.Parse(value)
			if err != nil {
				w.problem(key, "%q is not a label selector: %v", value, err)
				continue
			}
			w.otherNode = w.otherNode || !selector.Matches(labels.Set(b.node.Labels))
		case "affinity": // has an effect only with several clusters
			pick(&w, key, value, "local", "remote", "none")
		case "global", "shared", "global-sync-endpoint-slices": // likewise
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

// ownAnnotation reads an annotation with ownPrefix.
func (b *builder) ownAnnotation(w *annotations, name, value string) {
	switch {
	case name == ServerIDAnnotation:
		w.serverIDLength = b.serverIDLength(w, value)
	case strings.HasPrefix(name, ownPrefix):
		w.problemAt(name, "is not known")
	}
}

// typeOf is the type of a Service object.
func typeOf(name string) Type {
	for _, t := range []Type{ClusterIP, NodePort, LoadBalancer} {
		if t.String() == name {
			return t
		}
	}
	return 0
}

// weightOf is the weight of a slice's endpoints, and a problem with it, if there is one. 0 means maintenance.
func weightOf(slice *cluster.EndpointSlice) (uint16, string) {
	value, ok := slice.Annotations[prefix+"weight"]
	if !ok {
		return DefaultWeight, ""
	}
	weight, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return DefaultWeight, fmt.Sprintf(
			"EndpointSlice %s: metadata.annotations[%sweight]: %q is not in 0..65535", slice.Key(), prefix, value)
	}
	return uint16(weight), ""
}
