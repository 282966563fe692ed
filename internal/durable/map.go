package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"
)

// Map is a map whose content outlives the process, in a file of JSON. It may be used by several goroutines.
type Map[V any] struct {
	file string

	mu    sync.Mutex
	known map[string]V
}

// OpenMap reads a file; one that is not there is an empty map. Without a file, the map is in memory only.
func OpenMap[V any](file string) (*Map[V], error) {
	m := &Map[V]{file: file, known: map[string]V{}}
	if file == "" {
		return m, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m.known)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return m, nil
}

// All returns a copy of the map. Values are shared, and must not be changed.
func (m *Map[V]) All() map[string]V {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.known)
}

// Get returns a value, which must not be changed.
func (m *Map[V]) Get(name string) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok = m.known[name]
	return value, ok
}

// Change calls a function with a copy of the map. If that returns true, the copy is written to the file, and replaces
// the map. An empty map has no file. With an error, the map is as before.
func (m *Map[V]) Change(change func(map[string]V) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(m.known)
	if !change(next) {
		return nil
	}
	if err := m.write(next); err != nil {
		return err
	}
	m.known = next
	return nil
}

func (m *Map[V]) write(next map[string]V) error {
	switch {
	case m.file == "":
		return nil
	case len(next) == 0:
		return Remove(m.file)
	}
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	return Write(m.file, append(data, '\n'))
}
