package bpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"
)

// epochSlots is the length of struct epoch_table.
const epochSlots = 1 << 16

// generationIndex and translatedOffset are where those are in struct epoch_table: an index of numbers, and bytes.
const (
	generationIndex  = epochSlots + 1
	translatedOffset = 4 * (epochSlots + 2)
)

// Epochs makes kept decisions stale.
type Epochs struct {
	mu  sync.Mutex
	Map *ebpf.Map
}

// EpochOf reads the epoch of a slot.
func EpochOf(m *ebpf.Map, slot uint16) (uint32, error) { return readEpoch(m, int64(slot)) }

func readEpoch(m *ebpf.Map, index int64) (uint32, error) {
	memory, err := m.Memory()
	if err != nil {
		return 0, fmt.Errorf("map epochs: %w", err)
	}
	var b [4]byte
	if _, err := memory.ReadAt(b[:], 4*index); err != nil {
		return 0, fmt.Errorf("read epoch %d: %w", index, err)
	}
	return binary.NativeEndian.Uint32(b[:]), nil
}

// Generation reads how often the agent counted anything up.
func (e *Epochs) Generation() (uint32, error) { return readEpoch(e.Map, generationIndex) }

// Bump makes stale what was decided with the slot; slot 0 is in everything. The rows it was decided from must have been
// written before.
func (e *Epochs) Bump(slot uint16) error { return e.countUp(int64(slot), generationIndex) }

// Move makes stale what is valid for one generation only: the policy classes of two endpoints. Other decisions are
// looked at again, and last.
func (e *Epochs) Move() error { return e.countUp(generationIndex) }

// countUp counts numbers up, one after the other.
func (e *Epochs) countUp(indexes ...int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range indexes {
		n, err := readEpoch(e.Map, i)
		if err != nil {
			return err
		}
		if err := writeEpoch(e.Map, i, n+1); err != nil {
			return err
		}
	}
	return nil
}

// Begin gives the slot of a new endpoint an epoch that no row kept from before
// can know: whoever had the slot, or the endpoint's address.
func (e *Epochs) Begin(slot uint16) error {
	e.mu.Lock()
	err := writeEpoch(e.Map, int64(slot), rand.Uint32())
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.Move()
}

// Forget makes stale what was decided with the slot, whose endpoint is no more: the next one's packets are no Service's
// until one is.
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

func writeEpoch(m *ebpf.Map, index int64, n uint32) error {
	memory, err := m.Memory()
	if err != nil {
		return fmt.Errorf("map epochs: %w", err)
	}
	// Four aligned bytes are one store: a program sees the old number or the new one.
	if _, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, n), 4*index); err != nil {
		return fmt.Errorf("write epoch %d: %w", index, err)
	}
	return nil
}

// scatterEpochs gives epochs made anew a beginning that no row kept from before can know.
func scatterEpochs(m *ebpf.Map) error { return writeEpoch(m, 0, rand.Uint32()) }

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
