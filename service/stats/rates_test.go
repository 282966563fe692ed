package stats

import (
	"encoding/json"
	"testing"
	"time"
)

func entry(id uint32, backend string, requests, replies, flows uint64) *Entry {
	name := map[uint32]string{1: "demo/a", 2: "demo/b"}[id]
	return &Entry{ID: id, Service: name, Backend: backend, Requests: Traffic{requests, 100 * requests},
		Replies: Traffic{replies, 1000 * replies}, NewFlows: flows}
}

// TestRates: a counter that is new has counted since the last reading, and so has one that began anew.
func TestRates(t *testing.T) {
	before := []*Entry{entry(0, "", 100, 0, 0), entry(1, "x", 100, 100, 10), entry(2, "x", 50, 5, 1),
		entry(2, "gone", 7, 7, 7)}
	now := []*Entry{entry(0, "", 100, 0, 0), entry(1, "x", 120, 104, 10), entry(1, "new", 60, 0, 2),
		entry(2, "x", 8, 5, 9)}
	now[3].Requests.Bytes = 90_000
	now[1].Flows, now[2].Flows = new(int), new(int)
	*now[1].Flows, *now[2].Flows = 3, 4
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for order, names := range map[Order][]string{
		ByPackets: {"demo/a", "demo/b", ""}, ByBytes: {"demo/b", "demo/a", ""}, ByFlows: {"demo/b", "demo/a", ""},
	} {
		v := Rates(before, now, at, 2*time.Second, order)
		for i, s := range v.Services {
			if s.Service != names[i] {
				t.Errorf("by %s: %q comes as %d., want %q", order, s.Service, i+1, names[i])
			}
		}
	}
	v := Rates(before, now, at, 2*time.Second, ByPackets)
	a, b, others := v.Services[0], v.Services[1], v.Services[2]
	if a.Requests != (TrafficRate{40, 4000}) || a.Replies != (TrafficRate{2, 2000}) || a.NewFlows != 1 ||
		*a.Flows != 7 {
		t.Errorf("demo/a: %+v", a.Rate)
	}
	if len(a.Backends) != 2 || a.Backends[0].Backend != "new" || a.Backends[0].Requests.Packets != 30 {
		t.Errorf("demo/a: %+v", a.Backends)
	}
	if b.Requests != (TrafficRate{4, 42_500}) || b.Replies != (TrafficRate{}) || b.NewFlows != 4 || b.Flows != nil {
		t.Errorf("demo/b, which began anew: %+v", b.Rate)
	}
	if !others.Idle() || len(others.Backends) != 0 || a.Idle() {
		t.Errorf("others: %+v", others)
	}
	if v.Total.Requests.Packets != 44 || v.Total.NewFlows != 5 || *v.Total.Flows != 7 || v.Seconds != 2 {
		t.Errorf("total: %+v", v.Total)
	}
	data, err := json.Marshal(v.Services[1])
	const want = `{"service":"demo/b","requests":{"packets":4,"bytes":42500},"replies":{"packets":0,"bytes":0},` +
		`"newFlows":4,"backends":[{"backend":"x","requests":{"packets":4,"bytes":42500},` +
		`"replies":{"packets":0,"bytes":0},"newFlows":4}]}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
	if v := Rates(before, now, at, 0, ByPackets); v.Total.Requests.Packets != 0 {
		t.Errorf("in no time: %+v", v.Total)
	}
}
