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

// removal is a backend that left a set of a Service whose clients may stay
// with it; 0 is all of the Service's.
type removal struct{ serviceID, backend uint32 }

// depart notes who left: the row of a backend that is quarantined, in
// maintenance or terminating is still there, and affinity would go on sending
// new flows to it.
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

// signal tells whoever waits, once for all that happened since.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// forget deletes affinities to what left, until ctx ends.
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
			// The next removal tries again, and Prune at the latest.
			k.log.Error("clients may stay with backends that take no new flows", "error", err)
		}
	}
}

// sweep deletes the affinities to what left until now.
func (k *Kernel) cleanAffinities() error {
	k.mu.Lock()
	left := k.removals
	k.removals = map[removal]bool{}
	k.mu.Unlock()
	err := k.deleteAffinities(func(serviceID, backend uint32) bool {
		return left[removal{serviceID, backend}] || left[removal{serviceID, 0}]
	})
	if err != nil {
		k.mu.Lock()
		for d := range left {
			k.removals[d] = true
		}
		k.mu.Unlock()
	}
	return err
}

// deleteAffinities deletes those that stale says. One that a client gets
// meanwhile may go with them: it gets another one with its next flow.
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
