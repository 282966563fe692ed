package node

import "sync"

// Attached are the wires that the datapath's programs are attached to, for other parts of the agent. The zero value has
// none. It is safe for concurrent use; a nil one notes nothing.
type Attached struct {
	mu      sync.Mutex
	indexes map[int]bool
	changed chan struct{}
}

// Get returns whether the wire with an index is among them, and a channel that is closed when one is added or removed.
func (a *Attached) Get(index int) (ok bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.indexes[index], a.changed
}

func (a *Attached) set(index int, is bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.indexes[index] == is {
		return
	}
	if a.indexes == nil {
		a.indexes = map[int]bool{}
	}
	if a.indexes[index] = true; !is {
		delete(a.indexes, index)
	}
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}
