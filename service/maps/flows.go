package maps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/time/rate"

	"myelin/bpf"
	"myelin/flow"
	"myelin/service"
	"myelin/service/nat"
)

// endFlowsOfGone requests a flow scan that ends the flows of backends that were deleted.
func (k *Kernel) endFlowsOfGone() {
	k.backendsGone = true
	k.requestFlowScan()
}

// requestFlowScan requests a scan of all NAT entries.
func (k *Kernel) requestFlowScan() { signal(k.flowScanWake) }

// updateLoadCounting requests a flow scan if loads are to be counted from now on, or not any more.
func (k *Kernel) updateLoadCounting() {
	if len(k.tally.least) > 0 != k.countsLoads {
		k.requestFlowScan()
	}
}

// runFlowScans scans all NAT entries on request, and every second while a frontend uses least-conn, until ctx ends.
func (k *Kernel) runFlowScans(ctx context.Context) error {
	if k.datapath.NatEntries.MaxEntries() <= 1 { // Services are served at sockets only
		return nil
	}
	pace := rate.NewLimiter(rate.Every(scanInterval), 1)
	for {
		k.mu.Lock()
		again := time.Duration(0)
		if k.countsLoads {
			again = scanInterval
		}
		k.mu.Unlock()
		if !k.waitFlowScan(ctx, again) || pace.Wait(ctx) != nil {
			return nil
		}
		if err := k.scanFlows(); err != nil {
			k.log.Error("flows may stay with backends that are gone, and loads are outdated", "error", err)
			k.requestFlowScan()
		}
	}
}

// waitFlowScan waits until a scan is requested, or until a time has passed that is not 0. It returns false if ctx has
// ended.
func (k *Kernel) waitFlowScan(ctx context.Context, after time.Duration) bool {
	var timer <-chan time.Time
	if after > 0 {
		timer = time.After(after)
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer:
		return true
	case <-k.flowScanWake:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settleTime):
		return true
	}
}

// scanFlows scans all NAT entries once. It ends flows whose backend was deleted, and counts the others if a frontend
// uses least-conn.
func (k *Kernel) scanFlows() error {
	k.mu.Lock()
	w := flowScan{
		kernel: k, gone: k.backendsGone, known: map[uint32]bool{}, loads: map[uint32]uint32{},
		wanted: map[uint32]bool{},
	}
	w.least = make(map[uint32]bool, len(k.tally.least))
	for serviceID := range k.tally.least {
		w.least[serviceID] = true
	}
	k.backendsGone, k.countsLoads = false, len(w.least) > 0
	k.mu.Unlock()
	err := w.run()
	if err != nil {
		k.mu.Lock()
		k.backendsGone = k.backendsGone || w.gone
		k.mu.Unlock()
	}
	return err
}

// flowScan is the input and the result of one scan of all NAT entries.
type flowScan struct {
	kernel *Kernel
	gone   bool            // backends may have been deleted
	least  map[uint32]bool // Services with least-conn
	clock  flow.Clock

	known  map[uint32]bool // whether a backend is in the kernel
	stale  []bpf.DatapathNatTuple
	loads  map[uint32]uint32 // flows by backend
	wanted map[uint32]bool   // backends of Services with least-conn
}

func (w *flowScan) run() error {
	d := w.kernel.datapath
	settings, err := d.Settings()
	if err == nil {
		w.clock, err = flow.ReadClock(settings.Hz)
	}
	if err != nil {
		return fmt.Errorf("scan flows of Services: %w", err)
	}
	if w.gone || len(w.least) > 0 {
		var failed error
		err = bpf.Each(d.NatEntries, func(key *bpf.DatapathNatTuple, row *bpf.DatapathNatEntry) bool {
			failed = w.inspect(key, row)
			return failed == nil
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("scan flows of Services: %w", err)
		}
	}
	for _, key := range w.stale {
		if err := w.endFlow(key); err != nil {
			return fmt.Errorf("end a flow whose backend is gone: %w", err)
		}
	}
	return w.writeLoads()
}

// inspect looks at one entry. Its backend is 0 if another node selected it.
func (w *flowScan) inspect(key *bpf.DatapathNatTuple, row *bpf.DatapathNatEntry) error {
	if row.BackendId == 0 || nat.State(row) == nat.Gone || nat.Expired(w.clock, key, row) {
		return nil
	}
	if w.gone {
		exists, known := w.known[row.BackendId]
		if !known {
			var b bpf.DatapathBackend
			var err error
			if exists, err = bpf.Get(w.kernel.datapath.Backends, row.BackendId, &b); err != nil {
				return err
			}
			w.known[row.BackendId] = exists
		}
		if !exists {
			w.stale = append(w.stale, *key)
			return nil
		}
	}
	if nat.State(row) != flow.Closing {
		w.loads[row.BackendId]++
	}
	w.wanted[row.BackendId] = w.wanted[row.BackendId] || w.least[row.Service]
	return nil
}

// endFlow deletes an entry, so that the next packet begins another flow, or with TCP marks it, so that the client gets
// a reset. A packet that passes at the same time may not be counted.
func (w *flowScan) endFlow(key bpf.DatapathNatTuple) error {
	m := w.kernel.datapath.NatEntries
	var row bpf.DatapathNatEntry
	had, err := bpf.Get(m, key, &row)
	if err == nil && service.Protocol(key.Proto) != service.TCP {
		return errors.Join(deleteRow(w.kernel, m, key), w.kernel.datapath.DeleteNatReply(&key, &row))
	}
	if exists, known := w.known[row.BackendId]; err != nil || !had || !known || exists {
		return err // the entry belongs to another flow by now
	}
	row.Flags |= uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	if err := m.Update(key, row, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// writeLoads makes the map of loads equal to what was counted.
func (w *flowScan) writeLoads() error {
	k, m := w.kernel, w.kernel.datapath.Loads
	has := map[uint32]uint32{}
	err := bpf.Each(m, func(id, n *uint32) bool { has[*id] = *n; return true })
	if err != nil {
		return fmt.Errorf("read loads: %w", err)
	}
	for id, n := range w.loads {
		if !w.wanted[id] {
			continue
		}
		if has[id] != n {
			if err := putRow(k, m, id, n); err != nil {
				return fmt.Errorf("write the load of backend %d: %w", id, err)
			}
		}
		delete(has, id)
	}
	for id := range has {
		if err := deleteRow(k, m, id); err != nil {
			return fmt.Errorf("delete the load of backend %d: %w", id, err)
		}
	}
	return nil
}
