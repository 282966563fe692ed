package ui

import (
	"net/netip"
	"slices"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/printer"
)

// vertex is a vertex of the map: a workload, a Service, or a part of the world. Its form is KIND|NAMESPACE|NAME.
type vertex string

// Kinds of vertices besides those of workloads, which are theirs (Deployment, Pod, …).
const (
	service = "Service"
	outside = "outside"
)

// edgeKey identifies an edge. Its direction is the connection's: replies count as their requests.
type edgeKey struct {
	from, to vertex
	protocol string
	port     uint32 // of the server; 0: none, or that of a Service
}

// edge has the counts of an edge since the last batch.
type edge struct {
	From     vertex `json:"from"`
	To       vertex `json:"to"`
	Protocol string `json:"protocol"`
	Port     uint32 `json:"port,omitempty"`
	// Flows are all, of which Past are older than the stream, and Dropped and Audited those with these verdicts.
	Flows   uint64 `json:"flows"`
	Past    uint64 `json:"past,omitempty"`
	Dropped uint64 `json:"dropped,omitempty"`
	Audited uint64 `json:"audited,omitempty"`
	// LastDrop is when, in milliseconds since 1970, and Rule what decided it.
	LastDrop int64  `json:"lastDrop,omitempty"`
	Rule     string `json:"rule,omitempty"`
}

// add counts a flow.
func (e *edge) add(f *flowpb.Flow, past bool, rule string) {
	e.Flows++
	if past {
		e.Past++
	}
	if f.GetVerdict() == flowpb.Verdict_AUDIT {
		e.Audited++
	}
	if denied(f) {
		e.Dropped++
		e.LastDrop, e.Rule = f.GetTime().AsTime().UnixMilli(), rule
	}
}

// edges returns the edges that a flow counts for: one from its client to its server, or two through a Service.
func edges(f *flowpb.Flow) []edgeKey {
	source, target := vertexOf(f.GetSource(), f.GetIP().GetSource()),
		vertexOf(f.GetDestination(), f.GetIP().GetDestination())
	fromPort, port := printer.Ports(f)
	by := f.GetDestinationService()
	if isReply(f, fromPort, port) {
		source, target, port, by = target, source, fromPort, f.GetSourceService()
	}
	if source == "" || target == "" {
		return nil
	}
	protocol := printer.Protocol(f)
	if by.GetName() == "" {
		return []edgeKey{{source, target, protocol, port}}
	}
	middle := vertex(strings.Join([]string{service, by.GetNamespace(), by.GetName()}, "|"))
	if target == outside+"||world" { // the Service has no backend
		return []edgeKey{{source, middle, protocol, 0}}
	}
	return []edgeKey{{source, middle, protocol, 0}, {middle, target, protocol, port}}
}

// ephemeral is the first port that Linux gives to clients, by default.
const ephemeral = 32768

// isReply says which of both ends is the client. Where the agent does not know, it is the one with the port that
// clients get.
func isReply(f *flowpb.Flow, from, to uint32) bool {
	if f.GetIsReply() != nil {
		return f.GetIsReply().GetValue()
	}
	return to >= ephemeral && from > 0 && from < ephemeral
}

// vertexOf is the workload of an endpoint, or what its identity says of an end without one.
func vertexOf(e *flowpb.Endpoint, address string) vertex {
	kind, name := "Pod", e.GetPodName()
	if w := e.GetWorkloads(); len(w) > 0 && w[0].GetName() != "" {
		kind, name = w[0].GetKind(), w[0].GetName()
	}
	namespace := e.GetNamespace()
	if name == "" {
		kind, namespace, name = outside, "", reserved(e.GetLabels(), address)
	}
	if name == "" {
		return ""
	}
	clean := strings.NewReplacer("|", " ")
	return vertex(strings.Join([]string{clean.Replace(printer.Printable(kind)),
		clean.Replace(printer.Printable(namespace)), clean.Replace(printer.Printable(name))}, "|"))
}

// reserved is the name of an identity that is no pod's. The world's multicast and link-local addresses, which every
// device speaks to, are apart from those of real peers.
func reserved(labels []string, address string) string {
	a, err := netip.ParseAddr(address)
	world := slices.ContainsFunc(labels, func(l string) bool { return strings.HasPrefix(l, "reserved:world") })
	switch {
	case err == nil && (world || len(labels) == 0) && a.IsMulticast():
		return "multicast"
	case err == nil && (world || len(labels) == 0) && a.IsLinkLocalUnicast():
		return "link-local"
	case world:
		return "world"
	}
	for _, l := range labels {
		if name, ok := strings.CutPrefix(l, "reserved:"); ok {
			return name
		}
	}
	if address == "" {
		return ""
	}
	return "unknown"
}
