package dns

import (
	"net/netip"
	"slices"
	"sync"
)

// memory is a Map without a kernel.
type memory struct {
	mu      sync.Mutex
	entries map[key]Entry
}

type key struct {
	slot uint16
	addr netip.Addr
}

// Put copies the entry.
func (m *memory) Put(slot uint16, a netip.Addr, e Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[key]Entry{}
	}
	e.Selectors = slices.Clone(e.Selectors)
	m.entries[key{slot, a}] = e
	return nil
}

// Delete never fails.
func (m *memory) Delete(slot uint16, a netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key{slot, a})
	return nil
}

// Get returns the entry of an address.
func (m *memory) Get(slot uint16, a netip.Addr) (Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, found := m.entries[key{slot, a}]
	return e, found
}

// Len is the number of entries.
func (m *memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}
