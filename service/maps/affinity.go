package maps

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"myelin/bpf"
)

const (
	// scanInterval is the shortest time between two scans of all affinities, or of all NAT entries.
	scanInterval = time.Second
	// settleTime is waited before a scan of NAT entries, so that it covers backends that are deleted together, and the
	// entries of flows that had just selected one of them.
	settleTime = 100 * time.Millisecond
)

// removal is a backend that was removed from a set of a Service with session affinity. Backend 0 means all backends of
// the Service.
type removal struct{ serviceID, backend uint32 }

// noteRemovals records the backends that are removed from the sets of a frontend. The row of a backend that is
// quarantined, in maintenance or terminating still exists, and affinity would go on selecting it for new flows.
func (k *Kernel) noteRemovals(old, row *bpf.DatapathFrontend, all changes) {
	if old.Affinity == 0 || old.Service != row.Service {
		return
	}
	if row.Affinity == 0 {
		k.removals[removal{row.Service, 0}] = true
	} else {
		for scope, set := range old.Set {
			for id := range removedBackends(all.of(set.Id).last, all.of(row.Set[scope].Id).next) {
				k.removals[removal{row.Service, id}] = true
			}
		}
	}
	if len(k.removals) > 0 {
		signal(k.affinityWake)
	}
}

// signal wakes a receiver, once for all signals since it received last.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// runAffinityCleanup deletes affinities to removed backends, until ctx ends.
func (k *Kernel) runAffinityCleanup(ctx context.Context) error {
	pace := rate.NewLimiter(rate.Every(scanInterval), 1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.affinityWake:
		}
		if pace.Wait(ctx) != nil {
			return nil
		}
		if err := k.cleanAffinities(); err != nil {
			// It is tried again with the next removal, or by Prune.
			k.log.Error("clients may keep their affinity to removed backends", "error", err)
		}
	}
}

// cleanAffinities deletes the affinities to the backends that were removed so far.
func (k *Kernel) cleanAffinities() error {
	k.mu.Lock()
	removals := k.removals
	k.removals = map[removal]bool{}
	k.mu.Unlock()
	err := k.deleteAffinities(func(serviceID, backend uint32) bool {
		return removals[removal{serviceID, backend}] || removals[removal{serviceID, 0}]
	})
	if err != nil {
		k.mu.Lock()
		for d := range removals {
			k.removals[d] = true
		}
		k.mu.Unlock()
	}
	return err
}

// deleteAffinities deletes the stale ones. If a client's affinity is renewed at the same time, it may be deleted too;
// the client then gets another one with its next flow.
func (k *Kernel) deleteAffinities(stale func(serviceID, backend uint32) bool) error {
	var keys []bpf.DatapathAffinityKey
	err := bpf.Each(k.datapath.Affinities, func(key *bpf.DatapathAffinityKey, row *bpf.DatapathAffinity) bool {
		if stale(key.Service, row.Backend) {
			keys = append(keys, *key)
		}
		return true
	})
	for _, key := range keys {
		if err == nil {
			err = deleteRow(k, k.datapath.Affinities, key)
		}
	}
	if err != nil {
		return fmt.Errorf("delete affinities: %w", err)
	}
	return nil
}
