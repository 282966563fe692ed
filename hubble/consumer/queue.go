package consumer

import (
	"context"
	"sync/atomic"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

// Item is a flow, or else lost events.
type Item struct {
	Flow *flowpb.Flow
	Lost *flowpb.LostEvent
}

// Queue is a Consumer that hands what it is given to a goroutine of its own. What
// does not fit is dropped and counted. It selects flows by Filter; nil: all.
type Queue struct {
	Filter Filter

	items             chan Item
	accepted, dropped atomic.Uint64
}

// NewQueue makes a queue of at most size items.
func NewQueue(size int, filter Filter) *Queue {
	return &Queue{Filter: filter, items: make(chan Item, size)}
}

// Consume implements Consumer.
func (q *Queue) Consume(f *flowpb.Flow) {
	if q.Filter == nil || q.Filter(f) {
		q.put(Item{Flow: f})
	}
}

// Lost implements Consumer.
func (q *Queue) Lost(l *flowpb.LostEvent) { q.put(Item{Lost: l}) }

func (q *Queue) put(i Item) {
	select {
	case q.items <- i:
		q.accepted.Add(1)
	default:
		if i.Flow != nil {
			q.dropped.Add(1)
		} else {
			q.dropped.Add(i.Lost.GetNumEventsLost())
		}
	}
}

// Accepted is how many items were queued; Dropped how many events did not fit.
func (q *Queue) Accepted() uint64 { return q.accepted.Load() }

// Dropped is how many events did not fit into the queue.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Run gives batches of at most max items to a function, until ctx ends and what
// was queued by then has been given. A batch waits for more items at most for wait.
func (q *Queue) Run(ctx context.Context, max int, wait time.Duration, take func([]Item)) {
	batch := make([]Item, 0, max)
	for {
		select {
		case i := <-q.items:
			batch = q.fill(ctx, append(batch[:0], i), max, wait)
			take(batch)
		case <-ctx.Done():
			for len(q.items) > 0 {
				batch = q.fill(ctx, batch[:0], max, 0)
				take(batch)
			}
			return
		}
	}
}

// fill appends items until the batch is full, or wait is over, or ctx ends and the queue is empty.
func (q *Queue) fill(ctx context.Context, batch []Item, max int, wait time.Duration) []Item {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for len(batch) < max {
		select {
		case i := <-q.items:
			batch = append(batch, i)
			continue
		default:
		}
		if wait == 0 {
			return batch
		}
		select {
		case i := <-q.items:
			batch = append(batch, i)
		case <-timer.C:
			return batch
		case <-ctx.Done():
			wait = 0
		}
	}
	return batch
}
