package status

import (
	"fmt"
	"strings"
)

// runDir is where the agent keeps the state of pods.
func (f *Facts) runDir() Feature {
	dir := f.Config.Myelin.RunDir
	x := Feature{Name: "Run directory", State: OK, Wanted: "myelin.runDir: " + dir, Chosen: dir}
	if f.RunDir != nil {
		x.Break(f.RunDir.Error() + ": make room for it")
		x.Cost = "no pod can be added; pods that run go on, and can be deleted"
	}
	return x
}

// listeners are where health and metrics are served.
func (f *Facts) listeners() Feature {
	x := Feature{Name: "Health and metrics", State: OK}
	var texts []string
	serves := map[string]bool{}
	for _, l := range f.Listeners {
		serves[l.Name] = serves[l.Name] || l.Error == ""
	}
	for _, l := range f.Listeners {
		switch {
		case l.Error == "":
			texts = append(texts, l.Name+" on "+l.Address)
		case l.Absent && serves[l.Name]:
			// A node without IPv6 has no ::1.
		default:
			x.Break(fmt.Sprintf("%s is not served on %s, and tried again: %s", l.Name, l.Address, l.Error))
			x.Cost = "probes or scrapes of this address fail, or get the answers of another process"
		}
	}
	switch {
	case len(f.Listeners) == 0:
		x.State, x.Chosen, x.Why = Off, "off", "healthPort is 0, and prometheus.enabled false"
	case len(texts) == 0:
		x.Chosen = "not served"
	default:
		x.Chosen = strings.Join(texts, ", ")
	}
	return x
}
