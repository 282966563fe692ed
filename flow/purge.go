package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// purgeDelay is how long addresses of pods that went are gathered: pods come
// and go in bursts, and one pass over the rows serves all.
const purgeDelay = time.Second

// Purger deletes the rows of pods that went, so that the next pod with the
// address has none of them. What the datapath does with such rows meanwhile is
// safe: their epochs and slots are not those of the next pod.
type Purger struct {
	Datapath *bpf.Datapath
	Log      *slog.Logger

	mu   sync.Mutex
	gone map[bpf.DatapathAddr]time.Time
	wake chan struct{}
}

// NewPurger makes a Purger, which deletes nothing before it runs.
func NewPurger(d *bpf.Datapath, log *slog.Logger) *Purger {
	return &Purger{Datapath: d, Log: log, gone: map[bpf.DatapathAddr]time.Time{}, wake: make(chan struct{}, 1)}
}

// Forget asks for the rows of addresses that belong to no pod from now on.
func (p *Purger) Forget(addresses []netip.Addr) {
	p.mu.Lock()
	for _, a := range addresses {
		p.gone[bpf.Addr(a)] = time.Now()
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run deletes rows until ctx ends.
func (p *Purger) Run(ctx context.Context) error {
	settings, err := p.Datapath.Settings()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(purgeDelay):
		}
		if err := p.Pass(settings.Hz); err != nil {
			p.Log.Warn("rows of pods that are gone stay until they expire", "error", err)
		}
	}
}

// Pass deletes the rows of all addresses that were forgotten before it. hz is
// the datapath's ticks a second.
func (p *Purger) Pass(hz uint32) error {
	p.mu.Lock()
	gone := p.gone
	p.gone = map[bpf.DatapathAddr]time.Time{}
	p.mu.Unlock()
	clock, err := ReadClock(hz)
	if err != nil {
		return fmt.Errorf("purge flows: %w", err)
	}
	now := time.Now()
	// A row that is younger than the pod's end is the next pod's.
	old := func(a bpf.DatapathAddr, created uint64) bool {
		since, ok := gone[a]
		return ok && clock.Age(created) >= now.Sub(since)
	}
	return errors.Join(
		purge(p.Datapath.Flows, func(k *Key, r *Row) bool {
			return old(k.Addr[0], r.Created) || old(k.Addr[1], r.Created) || translated(r) && old(r.Pod, r.Created)
		}),
		p.purgeNat(func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
			return old(k.Src, r.CreatedAt()) || old(r.Backend, r.CreatedAt())
		}),
	)
}

// purgeNat deletes NAT entries of Services that are stale, and those of their replies.
func (p *Purger) purgeNat(stale func(*bpf.DatapathNatTuple, *bpf.DatapathNatEntry) bool) error {
	ended := map[bpf.DatapathNatTuple]bpf.DatapathNatEntry{}
	err := purge(p.Datapath.NatEntries, func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
		if !stale(k, r) {
			return false
		}
		ended[*k] = *r
		return true
	})
	for k, r := range ended {
		err = errors.Join(err, p.Datapath.DeleteNatReply(&k, &r))
	}
	return err
}

// purge deletes the rows of m that are stale.
func purge[K, V any](m *ebpf.Map, stale func(*K, *V) bool) error {
	var keys []K
	err := bpf.Each(m, func(k *K, v *V) bool {
		if stale(k, v) {
			keys = append(keys, *k)
		}
		return true
	})
	for i := range keys {
		if failed := m.Delete(&keys[i]); failed != nil && !errors.Is(failed, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("delete row: %w", failed))
		}
	}
	return err
}
