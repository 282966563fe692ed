package bandwidth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
)

// Limit is the row of an endpoint with limits or a priority, or with annotations that say none.
type Limit struct {
	ID   uint16 `json:"id"` // of the endpoint
	Pod  string `json:"pod"`
	Link string `json:"link"`
	// Egress and Ingress are in bit/s, 0: none.
	Egress  uint64 `json:"egress,omitempty"`
	Ingress uint64 `json:"ingress,omitempty"`
	// Priority is of what the pod sends: a class, or a number; empty: none.
	Priority string `json:"priority,omitempty"`
	// EgressPaced and IngressPaced: packets wait in a qdisc; otherwise those that would have to wait are dropped.
	EgressPaced  bool `json:"egressPaced,omitempty"`
	IngressPaced bool `json:"ingressPaced,omitempty"`
	// Problems are those of the annotations.
	Problems []string          `json:"problems,omitempty"`
	Status   reconciler.Status `json:"status"`
}

// Equal leaves the status out.
func (l *Limit) Equal(o *Limit) bool {
	return l.ID == o.ID && l.Pod == o.Pod && l.Link == o.Link && l.Egress == o.Egress && l.Ingress == o.Ingress &&
		l.Priority == o.Priority && l.EgressPaced == o.EgressPaced && l.IngressPaced == o.IngressPaced &&
		slices.Equal(l.Problems, o.Problems)
}

// TableHeader names the columns of TableRow.
func (*Limit) TableHeader() []string {
	return []string{"ID", "Pod", "Link", "Egress", "Ingress", "Priority", "Problems", "Status"}
}

// TableRow is the row as text.
func (l *Limit) TableRow() []string {
	return []string{fmt.Sprint(l.ID), l.Pod, l.Link, rateText(l.Egress), rateText(l.Ingress),
		cmp.Or(l.Priority, "-"), strings.Join(l.Problems, "; "), l.Status.String()}
}

func limitID() statedb.Index[*Limit, uint16] {
	return statedb.Index[*Limit, uint16]{
		Name:       "id",
		FromObject: func(l *Limit) index.KeySet { return index.NewKeySet(index.Uint16(l.ID)) },
		FromKey:    index.Uint16, FromString: index.Uint16String, Unique: true,
	}
}

func limitByID(id uint16) statedb.Query[*Limit] {
	i := limitID()
	return i.Query(id)
}

// What waits for a pod is bounded by time and by bytes: packets of one pod must not fill the queue of a device, which
// all share. A few milliseconds are needed at any rate, for a qdisc gets packets of 64 KiB.
const (
	minHorizon  = 10 * time.Millisecond
	maxHorizon  = 2 * time.Second
	queuedBytes = 2 << 20
	// policedBytes is how much passes at once where packets do not wait.
	policedBytes = 64 << 10
)

// horizon is how long a packet may wait at a rate in bytes per second, or how far bursts may go beyond the rate.
func horizon(rate uint64, paced bool) time.Duration {
	bytes := float64(policedBytes)
	if paced {
		bytes = queuedBytes
	}
	if rate == 0 {
		return 0
	}
	wait := time.Duration(bytes / float64(rate) * float64(time.Second))
	return min(max(wait, minHorizon), maxHorizon)
}

// limitOps writes the datapath's entries.
type limitOps struct {
	entries *ebpf.Map
	bump    func(slot uint16) error // makes stale what was decided for the endpoint
	clock   func() time.Duration    // CLOCK_MONOTONIC
}

const (
	egress  = uint16(bpf.DatapathBandwidthDirectionBANDWIDTH_EGRESS)
	ingress = uint16(bpf.DatapathBandwidthDirectionBANDWIDTH_INGRESS)
)

// Update writes both directions. A new entry is used, and an old one is not any more, when decisions are made anew.
func (o *limitOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, l *Limit) error {
	first, err := o.put(l, egress, terms{l.Egress, l.EgressPaced, mark(l.Priority)})
	if err != nil {
		return fmt.Errorf("write egress limit of %s: %w", l.Pod, err)
	}
	second, err := o.put(l, ingress, terms{rate: l.Ingress, paced: l.IngressPaced})
	if err != nil {
		return fmt.Errorf("write ingress limit of %s: %w", l.Pod, err)
	}
	if first || second {
		return o.bump(l.ID)
	}
	return nil
}

// terms are those of one direction of an endpoint.
type terms struct {
	rate     uint64 // bit/s
	paced    bool
	priority uint32
}

// put reports whether an entry was added or removed.
func (o *limitOps) put(l *Limit, direction uint16, want terms) (changed bool, err error) {
	key := bpf.DatapathBandwidthKey{Slot: l.ID, Direction: direction}
	if want.rate == 0 && want.priority == 0 {
		return o.remove(key)
	}
	var old bpf.DatapathBandwidth
	err = o.entries.Lookup(key, &old)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, err
	}
	next := entry(old, want, o.clock())
	if next == old {
		return false, nil
	}
	return err != nil, o.entries.Put(key, next)
}

// entry is old with other terms: what waits already keeps its times, and what follows may wait behind it. Packets that
// pass between reading and writing are not counted.
func entry(old bpf.DatapathBandwidth, to terms, now time.Duration) bpf.DatapathBandwidth {
	want := old
	want.Rate, want.Priority, want.Paced = to.rate/8, to.priority, 0
	if to.paced {
		want.Paced = 1
	}
	limit := horizon(want.Rate, to.paced)
	if waits := time.Duration(old.Next) - now; waits > limit {
		limit += waits
	}
	want.Horizon = uint64(limit)
	return want
}

func (o *limitOps) remove(key bpf.DatapathBandwidthKey) (removed bool, err error) {
	err = o.entries.Delete(key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Delete removes both entries.
func (o *limitOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, l *Limit) error {
	_, err := o.remove(bpf.DatapathBandwidthKey{Slot: l.ID, Direction: egress})
	_, err2 := o.remove(bpf.DatapathBandwidthKey{Slot: l.ID, Direction: ingress})
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("remove limits of %s: %w", l.Pod, err)
	}
	return o.bump(l.ID)
}

// Prune removes entries without a row.
func (o *limitOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Limit, statedb.Revision]) error {
	want := map[uint16]bool{}
	for l := range rows {
		want[l.ID] = true
	}
	var stale []bpf.DatapathBandwidthKey
	err := bpf.Each(o.entries, func(key *bpf.DatapathBandwidthKey, _ *bpf.DatapathBandwidth) bool {
		if !want[key.Slot] {
			stale = append(stale, *key)
		}
		return true
	})
	errs := []error{err}
	for _, key := range stale {
		_, err := o.remove(key)
		errs = append(errs, err, o.bump(key.Slot))
	}
	return errors.Join(errs...)
}
