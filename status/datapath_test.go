package status

import (
	"testing"

	"myelin/bpf"
)

// TestFlowTracking: the line names each feature whose flows have entries.
func TestFlowTracking(t *testing.T) {
	for name, c := range map[string]struct {
		settings bpf.Settings
		want     string
	}{
		"nothing":      {bpf.Settings{}, "no flow has an entry"},
		"masquerading": {bpf.Settings{Masquerade6: 1}, "only flows of masquerading"},
		"policies":     {bpf.Settings{Policy: 1}, "only flows of pods with policies"},
		"Services":     {bpf.Settings{Services: 1}, "only flows of Services (packet)"},
		"all": {bpf.Settings{Masquerade4: 1, Policy: 1, HostPolicy: 1, Services: 1},
			"only flows of masquerading, pods with policies, the host firewall, Services (packet)"},
		"always": {bpf.Settings{Masquerade4: 1, Policy: 1, FlowAlways: 1}, "every flow has an entry"},
	} {
		f := good(t)
		f.Settings = c.settings
		if got := f.flowTracking().Chosen; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
