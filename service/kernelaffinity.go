package service

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"myelin/bpf"
)

// sweepEvery is how often all affinities are looked through, at most.
const sweepEvery = time.Second

// departure is a backend that left a set of a Service whose clients may stay
// with it; 0 is all of the Service's.
type departure struct{ service, backend uint32 }

// depart notes who left: the row of a backend that is quarantined, in
// maintenance or terminating is still there, and affinity would go on sending
// new flows to it.
func (k *Kernel) depart(old, row *bpf.DatapathFrontend, all changes) {
	if old.Affinity == 0 || old.Service != row.Service {
		return
	}
	if row.Affinity == 0 {
		k.left[departure{row.Service, 0}] = true
	} else {
		for scope, set := range old.Set {
			for id := range lost(all.of(set.Id).last, all.of(row.Set[scope].Id).next) {
				k.left[departure{row.Service, id}] = true
			}
		}
	}
	if len(k.left) > 0 {
		signal(k.wake)
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
func (k *Kernel) forget(ctx context.Context) error {
	pace := rate.NewLimiter(rate.Every(sweepEvery), 1)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
		if pace.Wait(ctx) != nil {
			return nil
		}
		if err := k.sweep(); err != nil {
			// The next departure tries again, and Prune at the latest.
			k.log.Error("clients may stay with backends that take no new flows", "error", err)
		}
	}
}

// sweep deletes the affinities to what left until now.
func (k *Kernel) sweep() error {
	k.mu.Lock()
	left := k.left
	k.left = map[departure]bool{}
	k.mu.Unlock()
	err := k.dropAffinities(func(service, backend uint32) bool {
		return left[departure{service, backend}] || left[departure{service, 0}]
	})
	if err != nil {
		k.mu.Lock()
		for d := range left {
			k.left[d] = true
		}
		k.mu.Unlock()
	}
	return err
}

// dropAffinities deletes those that stale says. One that a client gets
// meanwhile may go with them: it gets another one with its next flow.
func (k *Kernel) dropAffinities(stale func(service, backend uint32) bool) error {
	var keys []bpf.DatapathAffinityKey
	err := bpf.Each(k.datapath.Affinities, func(key *bpf.DatapathAffinityKey, row *bpf.DatapathAffinity) bool {
		if stale(key.Service, row.Backend) {
			keys = append(keys, *key)
		}
		return true
	})
	for _, key := range keys {
		if err == nil {
			err = drop(k, k.datapath.Affinities, key)
		}
	}
	if err != nil {
		return fmt.Errorf("delete affinities: %w", err)
	}
	return nil
}
