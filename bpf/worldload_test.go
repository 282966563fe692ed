package bpf

import (
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// datapathSpec reads the embedded object once for all worlds.
var datapathSpec = sync.OnceValues(LoadDatapath)

func (w *world) load(t testing.TB, s Settings, tweak func(*ebpf.CollectionSpec)) {
	t.Helper()
	must(t, rlimit.RemoveMemlock())
	spec, err := datapathSpec()
	must(t, err)
	spec = spec.Copy()
	hz, err := ClockRate()
	must(t, err)
	s.Hz = hz * max(10, s.Hz) // a slow machine takes more than a second from step to step
	spec.Maps["flows"].MaxEntries = 8192
	if s.FlowAlways|s.Policy == 0 {
		spec.Maps["flow_cache"].MaxEntries = 1 // as Load has it; each row of a table empties the cache
	}
	if tweak != nil {
		tweak(spec)
	}
	must(t, Configure(spec, &s))
	must(t, spec.Variables["tracking"].Set(uint32(s.FlowAlways|s.Policy)))
	w.settings = s
	w.outcomes = outcomesOf(t, spec)
	if err := w.Assign(spec, nil); err != nil {
		t.Fatalf("load datapath with %+v: %+v", s, err)
	}
	t.Cleanup(func() { w.Close() })
	if s.L7 != 0 {
		must(t, w.assignLate(spec, &w.proxy))
		t.Cleanup(func() { w.proxy.Close() })
	}
}
