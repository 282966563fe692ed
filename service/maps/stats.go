package maps

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/statedb"

	"myelin/service/stats"
)

// statsInterval is how often it is seen that a Service has lost a backend which got no new flows any more, and that no
// flow counts into an index any more.
const statsInterval = 10 * time.Second

// Stats are the counters of Services by backend.
func (k *Kernel) Stats() *stats.Stats { return k.stats }

// runStats tends the indexes of counters until ctx ends.
func (k *Kernel) runStats(ctx context.Context) error {
	if k.datapath.Members.MaxEntries() <= 1 || !k.WaitInitialized(ctx) {
		return nil
	}
	tick := time.NewTicker(statsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if err := k.tendStats(now); err != nil {
				k.log.Error("counters of backends that are gone are not reused yet", "error", err)
			}
		}
	}
}

// tendStats releases the indexes of backends that their Service has lost, and gives those that are free again to
// backends that have none.
func (k *Kernel) tendStats(now time.Time) error {
	txn := k.db.ReadTxn()
	k.mu.Lock()
	var errs []error
	for id, name := range k.lingering {
		errs = append(errs, k.writeMembers(txn, name, id))
	}
	k.mu.Unlock()
	freed, err := k.stats.Reuse(now)
	if errs = append(errs, err); freed {
		errs = append(errs, k.writeAllMembers(txn))
	}
	k.stats.Forget(k.numbers(txn))
	return errors.Join(errs...)
}

// writeAllMembers is writeMembers for every Service with a frontend.
func (k *Kernel) writeAllMembers(txn statedb.ReadTxn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.membersAt)
	var errs []error
	for f := range k.tables.Frontends.All(txn) {
		errs = append(errs, k.writeMembers(txn, f.Service, f.ServiceID))
	}
	return errors.Join(errs...)
}

// numbers reports whether a Service has a number.
func (k *Kernel) numbers(txn statedb.ReadTxn) func(uint32) bool {
	all := map[uint32]bool{0: true}
	for s := range k.tables.Services.All(txn) {
		all[s.ID] = true
	}
	return func(id uint32) bool { return all[id] }
}
