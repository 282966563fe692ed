package bench

import (
	"os"
	"testing"
)

// Flows of healthy backends continue when backends are added, removed and drained, and few others move without NAT
// entries.
func TestMillions(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	list, err := millions(t.Context(), Options{Log: testLog()},
		millionSize{flows: 1 << 14, clients: 4, backends: 40, entries: 1 << 15, rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range list {
		got[r.Name] = r.Value
	}
	for _, suffix := range []string{"", "6"} {
		if excess := got["xdp/million_excess_moved"+suffix]; excess <= 0 || excess > 3 {
			t.Errorf("%v %% of the flows moved in excess", excess)
		}
		if broken := got["xdp/million_broken"+suffix]; broken != 0 {
			t.Errorf("%v flows are broken", broken)
		}
		for _, name := range []string{"xdp/million_maps_mb", "xdp/million_bytes_per_flow", "xdp/x_hit_16384"} {
			if got[name+suffix] <= 0 {
				t.Errorf("%s: %v", name+suffix, got[name+suffix])
			}
		}
	}
	if len(list) != 10 {
		t.Errorf("%d results: %+v", len(list), list)
	}
}

func TestContinues(t *testing.T) {
	was := flowState{backend: 1, port: 2, created: 3, packets: 4}
	for name, tc := range map[string]struct {
		is   flowState
		want bool
	}{
		"another packet":  {flowState{1, 2, 3, 5}, true},
		"no packet":       {was, false},
		"another backend": {flowState{2, 2, 3, 5}, false},
		"another port":    {flowState{1, 3, 3, 5}, false},
		"begun again":     {flowState{1, 2, 4, 5}, false},
		"no entry":        {flowState{}, false},
	} {
		if got := was.continues(&tc.is); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
