package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/time/rate"

	"myelin/bpf"
	"myelin/flow"
)

// stray asks for a walk over all flows, for backends have gone.
func (k *Kernel) stray() {
	k.strays = true
	k.look()
}

// look asks for a walk over all flows.
func (k *Kernel) look() { signal(k.flows) }

// counted asks for loads to be counted, or not any more.
func (k *Kernel) counted() {
	if len(k.tally.least) > 0 != k.counting {
		k.look()
	}
}

// attend walks over all flows where somebody asks, and every second as long as
// a frontend chooses who has the fewest, until ctx ends.
func (k *Kernel) attend(ctx context.Context) error {
	if k.datapath.NatEntries.MaxEntries() <= 1 { // no packet is translated
		return nil
	}
	pace := rate.NewLimiter(rate.Every(sweepEvery), 1)
	for {
		k.mu.Lock()
		again := time.Duration(0)
		if k.counting {
			again = sweepEvery
		}
		k.mu.Unlock()
		if !k.asked(ctx, again) || pace.Wait(ctx) != nil {
			return nil
		}
		if err := k.walk(); err != nil {
			k.log.Error("flows may stay with backends that are gone, and loads are old", "error", err)
			k.look()
		}
	}
}

// asked waits until a walk is wanted, which is so after a time that is not 0. It
// reports false when ctx has ended.
func (k *Kernel) asked(ctx context.Context, after time.Duration) bool {
	var timer <-chan time.Time
	if after > 0 {
		timer = time.After(after)
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer:
		return true
	case <-k.flows:
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
func (k *Kernel) walk() error {
	k.mu.Lock()
	w := walk{kernel: k, gone: k.strays, known: map[uint32]bool{}, loads: map[uint32]uint32{}, wanted: map[uint32]bool{}}
	w.least = make(map[uint32]bool, len(k.tally.least))
	for service := range k.tally.least {
		w.least[service] = true
	}
	k.strays, k.counting = false, len(w.least) > 0
	k.mu.Unlock()
	err := w.run()
	if err != nil {
		k.mu.Lock()
		k.strays = k.strays || w.gone
		k.mu.Unlock()
	}
	return err
}

// walk is what one walk over all flows knows and finds.
type walk struct {
	kernel *Kernel
	gone   bool            // somebody may have gone
	least  map[uint32]bool // Services that want loads
	clock  flow.Clock

	known  map[uint32]bool // whether a backend is in the kernel
	stale  []bpf.DatapathNatEntryKey
	loads  map[uint32]uint32 // flows by backend
	wanted map[uint32]bool   // backends of Services that want loads
}

func (w *walk) run() error {
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
		err = bpf.Each(d.NatEntries, func(key *bpf.DatapathNatEntryKey, row *bpf.DatapathNatEntry) bool {
			failed = w.see(key, row)
			return failed == nil
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("look at flows of Services: %w", err)
		}
	}
	for _, key := range w.stale {
		if err := w.end(key); err != nil {
			return fmt.Errorf("end a flow whose backend has gone: %w", err)
		}
	}
	return w.writeLoads()
}

// see looks at one flow. Backend 0 is one that another node chose.
func (w *walk) see(key *bpf.DatapathNatEntryKey, row *bpf.DatapathNatEntry) error {
	if row.BackendId == 0 || translationState(row) == Gone || translationOver(w.clock, key, row) {
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
	if translationState(row) != flow.Closing {
		w.loads[row.BackendId]++
	}
	w.wanted[row.BackendId] = w.wanted[row.BackendId] || w.least[row.Service]
	return nil
}

// end deletes a flow, so that its next packet begins another one, or of TCP
// marks it, so that its client is told. A packet that passes meanwhile may not
// be counted.
func (w *walk) end(key bpf.DatapathNatEntryKey) error {
	m := w.kernel.datapath.NatEntries
	if Protocol(key.Proto) != TCP {
		return drop(w.kernel, m, key)
	}
	var row bpf.DatapathNatEntry
	had, err := bpf.Get(m, key, &row)
	if here, asked := w.known[row.BackendId]; err != nil || !had || !asked || here {
		return err // another flow has the place
	}
	row.Flags |= uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	if err := m.Update(key, row, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// writeLoads makes the map of loads what was counted.
func (w *walk) writeLoads() error {
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
			if err := put(k, m, id, n); err != nil {
				return fmt.Errorf("write the load of backend %d: %w", id, err)
			}
		}
		delete(has, id)
	}
	for id := range has {
		if err := drop(k, m, id); err != nil {
			return fmt.Errorf("delete the load of backend %d: %w", id, err)
		}
	}
	return nil
}
