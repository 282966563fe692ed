package tracking

import (
	"testing"

	"myelin/agent/feature"
	"myelin/flow"
)

func TestStatus(t *testing.T) {
	some := tableUsage{Name: "flows", Usage: flow.Usage{Entries: 7, Max: 100, Most: 5}, Pod: "demo/web"}
	full := flow.Usage{Entries: 70, Max: 100, Most: 60}
	for name, c := range map[string]struct {
		list   []tableUsage
		state  feature.State
		chosen string
	}{
		"off":  {nil, feature.Off, "no table"},
		"none": {[]tableUsage{{Name: "flows", Usage: flow.Usage{Max: 100}}}, feature.OK, "flows: 0 of 100 entries"},
		"some": {[]tableUsage{some}, feature.OK, "flows: 7 of 100 entries, demo/web has the most: 5"},
		"grows": {[]tableUsage{{Name: "flows", Usage: flow.Usage{Max: 100}, Limit: 400}}, feature.OK,
			"flows: 0 of 100 entries (grows to 400)"},
		"has grown": {[]tableUsage{{Name: "flows", Usage: flow.Usage{Max: 400}, Limit: 400}}, feature.OK,
			"flows: 0 of 400 entries"},
		"a full share": {[]tableUsage{{Name: "flows", Usage: full, Pod: "demo/web"}}, feature.Fallback,
			"flows: 70 of 100 entries, demo/web has the most: 60"},
		"a full share that evicts": {[]tableUsage{{Name: "fragments", Usage: full, Pod: "demo/web", Evicts: true}},
			feature.OK, "fragments: 70 of 100 entries, demo/web has the most: 60"},
	} {
		if s := statusOf(c.list); s.State != c.state || s.Chosen != c.chosen {
			t.Errorf("%s: %s %q, want %s %q", name, s.State, s.Chosen, c.state, c.chosen)
		}
	}
}
