package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"myelin/internal/durable"
)

// maxStates bounds the number of addresses with a state, because all are in one file.
const maxStates = 1 << 16

// statesFile has the states by address.
const statesFile = "backend-states.json"

// SetState sets the state of a backend for an operator: Maintenance or Quarantined, or Active to delete it. It applies
// to the address until it is changed or the backend is deleted, also after a restart, and also to a backend that does
// not exist yet. The file is on disk when SetState returns. After an error nothing has changed.
func (s *Services) SetState(addr L4Addr, state State) error {
	if state != Active && state != Quarantined && state != Maintenance {
		return fmt.Errorf("set backend %s %s: only active, quarantined and maintenance can be set", addr, state)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.states)
	if state == Active {
		delete(next, addr)
	} else {
		next[addr] = state
	}
	if len(next) > maxStates {
		return fmt.Errorf("set backend %s %s: %d backends have a state already", addr, state, maxStates)
	}
	if err := s.saveStates(next); err != nil {
		return fmt.Errorf("set backend %s %s: %w", addr, state, err)
	}
	s.states = next
	s.changed = append(s.changed, addr)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// deleteStates deletes the states of backends that were deleted, so that they do not apply to the next backend with the
// address.
func (s *Services) deleteStates(gone func(L4Addr) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.states)
	if maps.DeleteFunc(next, func(a L4Addr, _ State) bool { return gone(a) }); len(next) == len(s.states) {
		return
	}
	s.states = next
	if err := s.saveStates(next); err != nil {
		s.Log.Error("states of deleted backends may be back after a restart", "error", err)
	}
}

// operatorState is the state that was set for an address.
func (s *Services) operatorState(addr L4Addr) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[addr]
}

// path is that of a file in Dir; empty if nothing is kept.
func (s *Services) path(name string) string {
	if s.Dir == "" {
		return ""
	}
	return filepath.Join(s.Dir, name)
}

func (s *Services) saveStates(states map[L4Addr]State) error {
	path := s.path(statesFile)
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(states, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(path, append(data, '\n'))
}

// loadStates reads the states that were set before the agent started.
func (s *Services) loadStates() error {
	path := s.path(statesFile)
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	states := map[L4Addr]State{}
	if err == nil {
		err = json.Unmarshal(data, &states)
	}
	if err != nil {
		return fmt.Errorf("read states of backends from %s: %w", path, err)
	}
	maps.DeleteFunc(states, func(_ L4Addr, state State) bool { return state != Quarantined && state != Maintenance })
	s.states = states
	return nil
}
