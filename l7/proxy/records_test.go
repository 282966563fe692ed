package proxy

import (
	"context"
	"testing"

	"myelin/l7/control"
)

// TestRing: a client gets each record once, knows how many it has missed, and goes on with the next proxy's first one.
func TestRing(t *testing.T) {
	t.Parallel()
	r := &ring{base: 1000}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	step := func(what string, from uint64, records int, first, next, lost uint64) {
		t.Helper()
		got := r.from(done, from)
		if len(got.List) != records || got.Next != next || got.Lost != lost ||
			records > 0 && got.List[0].Seq != first {
			t.Errorf("%s: %d records, next %d, lost %d; want %d, %d and %d", what, len(got.List), got.Next, got.Lost,
				records, next, lost)
		}
	}
	step("no record", 1, 0, 0, 1001, 0)
	r.add(control.Record{})
	r.add(control.Record{})
	step("a new client", 1, 2, 1001, 1003, 0)
	step("a client of the proxy before", 900, 2, 1001, 1003, 0)
	step("a client of a proxy that comes later", 5000, 2, 1001, 1003, 0)
	step("the second", 1002, 1, 1002, 1003, 0)
	step("all read", 1003, 0, 0, 1003, 0)
	if n := r.unread(); n != 1003 {
		t.Errorf("record %d is not read, want 1003", n)
	}
	for range ringSize + 3 {
		r.add(control.Record{})
	}
	if n := r.lostCount(); n != 3 {
		t.Errorf("%d records were overwritten, want 3", n)
	}
	step("overwritten", 1003, ringSize, 1006, 1006+ringSize, 3)
	got := make(chan control.Records)
	go func() { got <- r.from(t.Context(), 1006+ringSize) }()
	r.add(control.Record{Flow: control.Flow{Proto: 6}})
	if records := <-got; len(records.List) != 1 || records.List[0].Flow.Proto != 6 {
		t.Errorf("a client that waits gets %v", records)
	}
}
