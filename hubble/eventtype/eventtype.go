// Package eventtype has the numbers and names of the events that flows are made of (Flow.event_type), as Cilium's
// monitor has them.
package eventtype

// Types: Flow.event_type.type.
const (
	Drop          = 1
	Capture       = 3
	Trace         = 4
	PolicyVerdict = 5
	Sock          = 7
	AccessLog     = 129 // of layer 7
)

// TracePoints returns the names of the subtypes of Trace in the order of their numbers. The numbers equal those of
// flow.TraceObservationPoint, except for to-endpoint.
func TracePoints() []string {
	return []string{"to-endpoint", "to-proxy", "to-host", "to-stack", "to-overlay", "from-endpoint", "from-proxy",
		"from-host", "from-stack", "from-overlay", "from-network", "to-network", "from-crypto", "to-crypto"}
}

// TracePoint is the name of a subtype of Trace, empty if there is none.
func TracePoint(subtype int32) string {
	names := TracePoints()
	if subtype < 0 || int(subtype) >= len(names) {
		return ""
	}
	return names[subtype]
}
