package flood

import (
	"errors"
	"testing"

	"myelin/agent/feature"
	"myelin/flow"
)

func TestRateOf(t *testing.T) {
	for name, tc := range map[string]struct {
		configured, entries, size, cpus, want int
	}{
		"configured":    {7, 0, 65536, 2, 7},
		"empty":         {0, 0, 65536, 2, 32768},
		"half full":     {0, 32768, 65536, 2, 16384},
		"full":          {0, 65536, 65536, 2, 2048},
		"over full":     {0, 70000, 65536, 2, 2048},
		"full, 64 CPUs": {0, 65536, 65536, 64, 1000},
	} {
		if got := RateOf(tc.configured, flow.Usage{Entries: tc.entries, Max: tc.size}, tc.cpus); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		got    feature.Status
		state  feature.State
		chosen string
	}{
		"off":   {statusOf(0, 0, counts{}, nil), feature.Off, "no limit"},
		"quiet": {statusOf(0, 5, counts{}, nil), feature.OK, "5 new flows a second and CPU get NAT entries"},
		"flood": {statusOf(5, 5, counts{evicted: 2, stateless: 1}, nil), feature.OK,
			"5 new flows a second and CPU get NAT entries; 2 entries evicted, 1 packet without an entry"},
		"broken": {statusOf(5, 5, counts{}, errors.New("no")), feature.Broken, "no limit"},
	} {
		if tc.got.State != tc.state || tc.got.Chosen != tc.chosen {
			t.Errorf("%s: %v %q, want %v %q", name, tc.got.State, tc.got.Chosen, tc.state, tc.chosen)
		}
	}
}
