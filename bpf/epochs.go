package bpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"
)

// epochSlots is the length of struct epochs.
const epochSlots = 1 << 16

// translatedOffset is where translated is in struct epochs.
const translatedOffset = 4 * (epochSlots + 1)

// Epochs makes kept decisions stale.
type Epochs struct {
	mu  sync.Mutex
	Map *ebpf.Map
}

// EpochOf reads the epoch of a slot.
func EpochOf(m *ebpf.Map, slot uint16) (uint32, error) {
	memory, err := m.Memory()
	if err != nil {
		return 0, fmt.Errorf("map epochs: %w", err)
	}
	var b [4]byte
	if _, err := memory.ReadAt(b[:], 4*int64(slot)); err != nil {
		return 0, fmt.Errorf("read epoch of slot %d: %w", slot, err)
	}
	return binary.NativeEndian.Uint32(b[:]), nil
}

// Bump makes stale what was decided with the slot; slot 0 is in everything. The rows it was decided from must have been written before.
func (e *Epochs) Bump(slot uint16) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, err := EpochOf(e.Map, slot)
	if err != nil {
		return err
	}
	return setEpoch(e.Map, slot, n+1)
}

// Forget makes stale what was decided with the slot, whose endpoint is no more: the next one's packets are no Service's until one is.
func (e *Epochs) Forget(slot uint16) error {
	memory, err := e.Map.Memory()
	if err != nil {
		return fmt.Errorf("map epochs: %w", err)
	}
	if _, err := memory.WriteAt([]byte{0}, translatedOffset+int64(slot)); err != nil {
		return fmt.Errorf("write slot %d: %w", slot, err)
	}
	return e.Bump(slot)
}

func setEpoch(m *ebpf.Map, slot uint16, n uint32) error {
	memory, err := m.Memory()
	if err != nil {
		return fmt.Errorf("map epochs: %w", err)
	}
	// Four aligned bytes are one store: a program sees the old number or the new one.
	if _, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, n), 4*int64(slot)); err != nil {
		return fmt.Errorf("write epoch of slot %d: %w", slot, err)
	}
	return nil
}

// scatterEpochs gives epochs made anew a beginning that no row kept from before can know.
func scatterEpochs(m *ebpf.Map) error { return setEpoch(m, 0, rand.Uint32()) }

// dumpEpochs calls fn for each epoch that is not zero.
func dumpEpochs(m *ebpf.Map, fn func(*DumpRow) bool) error {
	for slot := range epochSlots {
		n, err := EpochOf(m, uint16(slot))
		if err != nil {
			return err
		}
		if n != 0 && !fn(&DumpRow{[]DumpField{{Text: fmt.Sprint(slot)}}, []DumpField{{Text: fmt.Sprint(n)}}}) {
			return nil
		}
	}
	return nil
}
