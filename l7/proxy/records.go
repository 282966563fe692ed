package proxy

import (
	"context"
	"sync"

	"myelin/l7/control"
)

// ringSize is how many records wait for an agent.
const ringSize = 1 << 13

// ring has the last records. Its Seqs begin after base.
type ring struct {
	// base is higher than all Seqs of proxies before this one, so that a client goes on with this one's first record.
	base uint64
	mu   sync.Mutex
	list [ringSize]control.Record
	next uint64        // Seq of the next record, minus 1; 0: there was none
	more chan struct{} // closed when a record comes; nil: nothing waits
	read uint64        // the highest Seq that a client has read
	lost uint64        // records that were overwritten before that
}

func (r *ring) add(record control.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = max(r.next, r.base)
	if r.next >= r.base+ringSize && r.next-ringSize >= r.read {
		r.lost++
	}
	r.next++
	record.Seq = r.next
	r.list[(r.next-1)%ringSize] = record
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// from returns the records from a Seq on; without any, it waits for one until the context ends.
func (r *ring) from(ctx context.Context, seq uint64) control.Records {
	for {
		records, more := r.take(seq)
		if more == nil {
			return records
		}
		select {
		case <-more:
		case <-ctx.Done():
			return records
		}
	}
}

func (r *ring) take(seq uint64) (records control.Records, more chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = max(r.next, r.base)
	if seq <= r.base || seq > r.next+1 { // of another proxy, or of none
		seq = r.base + 1
	}
	oldest := r.base + 1
	if r.next > r.base+ringSize {
		oldest = r.next - ringSize + 1
	}
	if seq < oldest {
		records.Lost, seq = oldest-seq, oldest
	}
	for s := seq; s <= r.next; s++ {
		records.List = append(records.List, r.list[(s-1)%ringSize])
	}
	records.Next, r.read = r.next+1, max(r.read, r.next)
	if len(records.List) > 0 {
		return records, nil
	}
	if r.more == nil {
		r.more = make(chan struct{})
	}
	return records, r.more
}

// unread is the Seq of the first record that no client has read.
func (r *ring) unread() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.read, r.base) + 1
}

func (r *ring) lostCount() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}
