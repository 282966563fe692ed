package status

import (
	"fmt"
	"strings"

	"myelin/flow"
)

// Conntrack is how full a conntrack table is, and which pod has the most of it.
type Conntrack struct {
	Table string
	flow.Usage
	// Pod is "namespace/name" of the pod with the most entries, or the number of
	// an endpoint that has gone; empty where no pod has any.
	Pod string
}

// conntrack is the line that names the pod which uses the most entries.
func (f *Facts) conntrack() Feature {
	x := Feature{Name: "Conntrack", State: Off, Chosen: "no table", Wanted: "bpf.ctTcpMax, bpf.ctAnyMax, bpf.lbMapMax"}
	var tables []string
	for _, t := range f.Conntrack {
		x.State = OK
		text := fmt.Sprintf("%s: %d of %d entries", t.Table, t.Entries, t.Max)
		if t.Most > 0 {
			text += fmt.Sprintf(", %s has the most: %d", t.Pod, t.Most)
		}
		tables = append(tables, text)
		if t.Limited() {
			x.FallBack(fmt.Sprintf("%s has its share of %s: as many entries as are left for others", t.Pod, t.Table))
			x.Cost = "its new flows are dropped: DROP_FLOW_LIMIT"
		}
	}
	if len(tables) > 0 {
		x.Chosen = strings.Join(tables, "; ")
	} else {
		x.Why = "no feature needs one"
	}
	return x
}
