package tracking

import (
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
)

// TestFragments: the pod link with the most entries counts, neither wires nor links of pods that are gone.
func TestFragments(t *testing.T) {
	const wire, a, b, gone = 0, 11, 12, 13
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, map[string]uint32{"fragments": 4096})
	for ifindex, slot := range map[uint32]uint16{a: 5000, b: 3} {
		link := bpf.DatapathPodLink{Endpoint: bpf.DatapathEndpoint{Ifindex: ifindex, Slot: slot}}
		if err := d.PodLinks.Put(ifindex, link); err != nil {
			t.Fatal(err)
		}
	}
	for ifindex, n := range map[uint32]uint32{wire: 40, a: 20, b: 10, gone: 30} {
		for i := range n {
			key := bpf.DatapathFragmentKey{Ifindex: ifindex, Index: i}
			if err := d.Fragments.Put(key, bpf.DatapathFragmentRow{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := flow.Usage{Entries: 100, Max: 4096, Slot: 5000, Most: 20}
	if got, err := fragments(d); err != nil || got != want {
		t.Errorf("usage is %+v, %v, want %+v", got, err, want)
	}
}
