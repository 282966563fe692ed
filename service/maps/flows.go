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

// stray asks for a walk over all flows, for backends have gone.
func (k *Kernel) endFlowsOfGone() {
	k.backendsGone = true
	k.requestFlowScan()
}

// look asks for a walk over all flows.
func (k *Kernel) requestFlowScan() { signal(k.flowScanWake) }

// counted asks for loads to be counted, or not any more.
func (k *Kernel) updateLoadCounting() {
	if len(k.tally.least) > 0 != k.countsLoads {
		k.requestFlowScan()
	}
}

// attend walks over all flows where somebody asks, and every second as long as
// a frontend chooses who has the fewest, until ctx ends.
func (k *Kernel) runFlowScans(ctx context.Context) error {
	if k.datapath.Translations.MaxEntries() <= 1 { // no packet is translated
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
			k.log.Error("flows may stay with backends that are gone, and loads are old", "error", err)
			k.requestFlowScan()
		}
	}
}

// asked waits until a walk is wanted, which is so after a time that is not 0. It
// reports false when ctx has ended.
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

// walk looks at all flows once: those whose backend has gone end, and others
// are counted if some frontend wants to know.
func (k *Kernel) scanFlows() error {
	k.mu.Lock()
	w := flowScan{kernel: k, gone: k.backendsGone, known: map[uint32]bool{}, loads: map[uint32]uint32{}, wanted: map[uint32]bool{}}
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

// walk is what one walk over all flows knows and finds.
type flowScan struct {
	kernel *Kernel
	gone   bool            // somebody may have gone
	least  map[uint32]bool // Services that want loads
	clock  flow.Clock

	known  map[uint32]bool // whether a backend is in the kernel
	stale  []bpf.DatapathTranslationKey
	loads  map[uint32]uint32 // flows by backend
	wanted map[uint32]bool   // backends of Services that want loads
}

func (w *flowScan) run() error {
	d := w.kernel.datapath
	settings, err := d.Settings()
	if err == nil {
		w.clock, err = flow.ReadClock(settings.Hz)
	}
	if err != nil {
		return fmt.Errorf("look at flows of Services: %w", err)
	}
	if w.gone || len(w.least) > 0 {
		var failed error
		err = bpf.Each(d.Translations, func(key *bpf.DatapathTranslationKey, row *bpf.DatapathTranslation) bool {
			failed = w.inspect(key, row)
			return failed == nil
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("look at flows of Services: %w", err)
		}
	}
	for _, key := range w.stale {
		if err := w.endFlow(key); err != nil {
			return fmt.Errorf("end a flow whose backend has gone: %w", err)
		}
	}
	return w.writeLoads()
}

// see looks at one flow. Backend 0 is one that another node chose.
func (w *flowScan) inspect(key *bpf.DatapathTranslationKey, row *bpf.DatapathTranslation) error {
	if row.BackendId == 0 || nat.State(row) == nat.Gone || nat.Expired(w.clock, key, row) {
		return nil
	}
	if w.gone {
		here, asked := w.known[row.BackendId]
		if !asked {
			var b bpf.DatapathBackend
			var err error
			if here, err = bpf.Get(w.kernel.datapath.Backends, row.BackendId, &b); err != nil {
				return err
			}
			w.known[row.BackendId] = here
		}
		if !here {
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

// end deletes a flow, so that its next packet begins another one, or of TCP
// marks it, so that its client is told. A packet that passes meanwhile may not
// be counted.
func (w *flowScan) endFlow(key bpf.DatapathTranslationKey) error {
	m := w.kernel.datapath.Translations
	if service.Protocol(key.Proto) != service.TCP {
		return deleteRow(w.kernel, m, key)
	}
	var row bpf.DatapathTranslation
	had, err := bpf.Get(m, key, &row)
	if here, asked := w.known[row.BackendId]; err != nil || !had || !asked || here {
		return err // another flow has the place
	}
	row.Flags |= uint8(bpf.DatapathTranslationFlagTRANSLATION_GONE)
	if err := m.Update(key, row, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// writeLoads makes the map of loads what was counted.
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
