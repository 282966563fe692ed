package metrics

import (
	"slices"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/options"
)

// end is one end of a flow.
type end struct {
	endpoint *flowpb.Endpoint
	names    []string
	ip       string
}

func ends(f *flowpb.Flow) (source, destination end) {
	return end{f.GetSource(), f.GetSourceNames(), f.GetIP().GetSource()},
		end{f.GetDestination(), f.GetDestinationNames(), f.GetIP().GetDestination()}
}

// contextValues appends the values of the context's labels, in the order of
// Names. Inverted, the two ends are exchanged: the flow is a response, and its
// series that of the request.
func contextValues(values []string, c *options.Context, f *flowpb.Flow, inverted bool) []string {
	source, destination := ends(f)
	from, to := source, destination
	if inverted {
		from, to = destination, source
	}
	for _, l := range c.Labels {
		values = append(values, labelValue(l, from, to, f))
	}
	// Kinds apply to the flow's own ends, as in Hubble: only the results are exchanged.
	direction := f.GetTrafficDirection()
	a := first(byDirection(direction, c.Source, c.SourceIngress, c.SourceEgress), source)
	b := first(byDirection(direction, c.Destination, c.DestinationIngress, c.DestinationEgress), destination)
	if inverted {
		a, b = b, a
	}
	if c.HasSource() {
		values = append(values, a)
	}
	if c.HasDestination() {
		values = append(values, b)
	}
	return values
}

func byDirection(d flowpb.TrafficDirection, both, ingress, egress []string) []string {
	switch {
	case d == flowpb.TrafficDirection_INGRESS && len(ingress) > 0:
		return ingress
	case d == flowpb.TrafficDirection_EGRESS && len(egress) > 0:
		return egress
	}
	return both
}

// first is the first name that an end has, of kinds in their order; empty if it has none.
func first(kinds []string, e end) string {
	for _, k := range kinds {
		if name := e.name(k); name != "" {
			return name
		}
	}
	return ""
}

// name returns the name of an end by one of options.Kinds, or an empty string if it has none.
func (e end) name(kind string) string {
	switch kind {
	case "identity":
		return strings.Join(e.endpoint.GetLabels(), ",")
	case "namespace":
		return e.endpoint.GetNamespace()
	case "pod":
		return podName(e.endpoint)
	case "pod-name":
		return e.endpoint.GetPodName()
	case "dns":
		return strings.Join(e.names, ",")
	case "ip":
		return e.ip
	case "reserved-identity":
		return reserved(e.endpoint.GetLabels())
	case "workload":
		name := e.workload().GetName()
		if ns := e.endpoint.GetNamespace(); name != "" && ns != "" {
			return ns + "/" + name
		}
		return name
	case "workload-name":
		return e.workload().GetName()
	case "app":
		return app(e.endpoint.GetLabels())
	}
	return ""
}

// podName is namespace/pod. An end with a namespace alone is "namespace/", as with Hubble.
func podName(e *flowpb.Endpoint) string {
	if ns := e.GetNamespace(); ns != "" {
		return ns + "/" + e.GetPodName()
	}
	return e.GetPodName()
}

func (e end) workload() *flowpb.Workload {
	if w := e.endpoint.GetWorkloads(); len(w) > 0 {
		return w[0]
	}
	return nil
}

// reserved is the label of the API server if it is there, or else the first reserved one.
func reserved(labels []string) string {
	const apiServer = "reserved:kube-apiserver"
	if slices.Contains(labels, apiServer) {
		return apiServer
	}
	for _, l := range labels {
		if strings.HasPrefix(l, "reserved:") {
			return l
		}
	}
	return ""
}

// app is the value of the first label that names an application.
func app(labels []string) string {
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		switch key {
		case "k8s:app.kubernetes.io/name", "k8s:k8s-app", "k8s:app":
			if value != "" {
				return value
			}
		}
	}
	return ""
}

// labelValue is the value of one of options.ContextLabels.
func labelValue(label string, from, to end, f *flowpb.Flow) string {
	if label == "traffic_direction" {
		if d := f.GetTrafficDirection(); d != flowpb.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
			return strings.ToLower(d.String())
		}
		return "unknown"
	}
	side, name, _ := strings.Cut(label, "_")
	e := from
	if side == "destination" {
		e = to
	}
	switch name {
	case "ip":
		return e.ip
	case "pod":
		return e.endpoint.GetPodName()
	case "namespace":
		return e.endpoint.GetNamespace()
	case "workload":
		return e.workload().GetName()
	case "workload_kind":
		return e.workload().GetKind()
	case "app":
		return app(e.endpoint.GetLabels())
	}
	return ""
}
