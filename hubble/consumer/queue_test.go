package consumer

import (
	"context"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

func TestQueueCountsWhatDoesNotFit(t *testing.T) {
	q := NewQueue(2, func(f *flowpb.Flow) bool { return f.GetUuid() != "no" })
	for _, id := range []string{"a", "no", "b", "c"} {
		q.Consume(&flowpb.Flow{Uuid: id})
	}
	q.Lost(&flowpb.LostEvent{NumEventsLost: 5})
	if q.Accepted() != 2 || q.Dropped() != 6 {
		t.Errorf("accepted %d, dropped %d, want 2 and 6", q.Accepted(), q.Dropped())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var got []string
	q.Run(ctx, 10, time.Hour, func(items []Item) {
		for _, i := range items {
			got = append(got, i.Flow.GetUuid())
		}
	})
	if len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("got %v after the end, want what was queued before it", got)
	}
}

func TestQueueBatches(t *testing.T) {
	q := NewQueue(100, nil)
	for range 7 {
		q.Consume(&flowpb.Flow{})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sizes []int
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Run(ctx, 3, time.Millisecond, func(items []Item) {
			if sizes = append(sizes, len(items)); len(sizes) == 3 {
				cancel()
			}
		})
	}()
	<-done
	if len(sizes) != 3 || sizes[0] != 3 || sizes[1] != 3 || sizes[2] != 1 {
		t.Errorf("batches of %v, want 3, 3 and 1: the last after its wait", sizes)
	}
}
