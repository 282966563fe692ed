package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Pinned is the use of a map that a datapath has pinned: its rows, and the sum of what they count. It is zero if there
// is no such map.
type Pinned struct{ Counted, Rows, Max int }

// CountPinned adds up what count returns for the rows in a map that a datapath has pinned in dir. Rows of another
// layout do not count.
func CountPinned[K, V any](dir, name string, count func(*K, *V) int) (Pinned, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "maps", name), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return Pinned{}, nil
	}
	if err != nil {
		return Pinned{}, fmt.Errorf("open pinned map %s: %w", name, err)
	}
	defer m.Close()
	var (
		key   K
		value V
	)
	p := Pinned{Max: int(m.MaxEntries())}
	if m.KeySize() != uint32(unsafe.Sizeof(key)) || m.ValueSize() != uint32(unsafe.Sizeof(value)) {
		return p, nil
	}
	err = Each(m, func(k *K, v *V) bool {
		p.Rows++
		p.Counted += count(k, v)
		return true
	})
	if err != nil {
		return Pinned{}, fmt.Errorf("count rows of pinned map %s: %w", name, err)
	}
	return p, nil
}
