package endpoint

import (
	"fmt"
	"sync"
	"time"
)

// slotRest is how long a slot stays free after its release: events and flow
// rows of the old pod still carry the number for a while, and a new pod must
// not be taken for it. A restart of the agent forgets what rests.
const slotRest = 30 * time.Second

// slots hands out endpoint IDs, the smallest one that is free and rested. It is
// safe for concurrent use.
type slots struct {
	now func() time.Time

	mu      sync.Mutex
	owners  map[Attachment]uint16
	taken   map[uint16]bool
	resting map[uint16]time.Time // when it was released
	low     int                  // every slot below is taken or rests
}

func newSlots(now func() time.Time) *slots {
	return &slots{
		now:     now,
		owners:  make(map[Attachment]uint16),
		taken:   make(map[uint16]bool),
		resting: make(map[uint16]time.Time),
		low:     MinID,
	}
}

func (s *slots) allocate(owner Attachment) (uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.owners[owner]; ok {
		return 0, fmt.Errorf("allocate endpoint ID for %s: it already holds %d", owner, id)
	}
	now := s.now()
	for id, since := range s.resting {
		if now.Sub(since) >= slotRest {
			delete(s.resting, id)
			s.low = min(s.low, int(id))
		}
	}
	for ; s.low <= MaxID; s.low++ {
		id := uint16(s.low)
		if _, rests := s.resting[id]; !rests && !s.taken[id] {
			s.taken[id], s.owners[owner] = true, id
			return id, nil
		}
	}
	return 0, fmt.Errorf("allocate endpoint ID for %s: all %d in use, %d of them for %v after their release",
		owner, MaxID-MinID+1, len(s.resting), slotRest)
}

// claim takes id for owner, as it was before a restart.
func (s *slots) claim(owner Attachment, id uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < MinID || s.taken[id] {
		return fmt.Errorf("claim endpoint ID %d for %s: reserved or in use", id, owner)
	}
	if other, ok := s.owners[owner]; ok {
		return fmt.Errorf("claim endpoint ID %d for %s: it already holds %d", id, owner, other)
	}
	s.taken[id], s.owners[owner] = true, id
	return nil
}

// of returns the slot that owner holds.
func (s *slots) of(owner Attachment) (uint16, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.owners[owner]
	return id, ok
}

func (s *slots) release(owner Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.owners[owner]; ok {
		delete(s.owners, owner)
		delete(s.taken, id)
		s.resting[id] = s.now()
	}
}
