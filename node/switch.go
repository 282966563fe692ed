package node

import "sync"

// Switch is a wish of another part of the agent that the rows follow. The zero
// value is off. It is safe for concurrent use.
type Switch struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{}
}

// Set turns it on or off.
func (s *Switch) Set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on == on {
		return
	}
	s.on = on
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// state returns how it is, and a channel that is closed when that has changed.
func (s *Switch) state() (on bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.on, s.changed
}
