package ledger

import (
	"fmt"
	"iter"
)

// Numbers gives IDs to keys, and keeps them in a file over restarts. Numbers
// that were let go rest until all 2^32 were given.
type Numbers[K interface {
	comparable
	fmt.Stringer
}] struct {
	ledger Ledger[numberOf]
	next   uint32
	byKey  map[K]uint32
	used   map[uint32]bool
	// kept are those of the file that have not been requested yet, by key as text.
	kept  map[string]uint32
	fresh []numberOf // not in the file yet
}

// numberOf is a line of the file: a number and whose it is.
type numberOf struct {
	Head
	Key string `json:"key,omitempty"`
}

func numbered(id uint32, key string) numberOf { return numberOf{Head: Head{ID: id}, Key: key} }

// NewNumbers reads the file and opens it to go on; numbers up to last are
// in use already, whatever the file says. Only a file that can't be
// written, for another reason than a full disk, makes n nil; one that can't be used is begun anew, and bad says
// why.
func NewNumbers[K interface {
	comparable
	fmt.Stringer
}](path string, last uint32) (n *Numbers[K], bad, err error) {
	n = &Numbers[K]{ledger: Ledger[numberOf]{Path: path}, byKey: map[K]uint32{}, used: map[uint32]bool{},
		kept: map[string]uint32{}}
	if n.next, bad = n.ledger.Read(last+1, n.known); bad != nil {
		n.next, n.used, n.kept = last+1, map[uint32]bool{}, map[string]uint32{}
	}
	if _, err := n.ledger.Start(n.next, n.all()); err != nil {
		return nil, nil, err
	}
	return n, bad, nil
}

// known takes a line of the file. Of two lines with one key, the later one
// counts.
func (n *Numbers[K]) known(r numberOf) error {
	if r.Key == "" || n.used[r.ID] {
		return fmt.Errorf("number %d is not valid here", r.ID)
	}
	delete(n.used, n.kept[r.Key])
	n.kept[r.Key], n.used[r.ID] = r.ID, true
	return nil
}

// Get is the number of a key, a new one if it has none.
func (n *Numbers[K]) Get(key K) uint32 {
	if id, ok := n.byKey[key]; ok {
		return id
	}
	if len(n.kept) > 0 {
		text := key.String()
		if id, ok := n.kept[text]; ok {
			delete(n.kept, text)
			n.byKey[key] = id
			return id
		}
	}
	for n.next == 0 || n.used[n.next] {
		n.next++ // after 2^32 the numbers begin again
	}
	id := n.next
	n.next++
	n.byKey[key], n.used[id] = id, true
	if n.ledger.Path != "" {
		n.fresh = append(n.fresh, numbered(id, key.String()))
	}
	return id
}

// Release lets a number go.
func (n *Numbers[K]) Release(key K) {
	delete(n.used, n.byKey[key])
	delete(n.byKey, key)
}

// Keeps reports whether the key had a number before the start, and no caller has
// asked for it since.
func (n *Numbers[K]) Keeps(key K) bool {
	_, ok := n.kept[key.String()]
	return ok
}

// ReleaseKept releases the numbers that have not been requested since the start.
func (n *Numbers[K]) ReleaseKept() {
	for _, id := range n.kept {
		delete(n.used, id)
	}
	n.kept = map[string]uint32{}
}

// Save writes new numbers to the file. A number must be there before anybody
// sees it, or a crash could give it to another key while the kernel holds it.
func (n *Numbers[K]) Save() error {
	if len(n.fresh) == 0 {
		return nil
	}
	if n.ledger.Wasteful(len(n.used)) {
		return n.rewrite()
	}
	n.fresh[len(n.fresh)-1].Next = n.next
	if err := n.ledger.Append(n.fresh); err != nil {
		return err
	}
	n.fresh = nil
	return nil
}

// rewrite makes the file hold the numbers in use.
func (n *Numbers[K]) rewrite() error {
	err := n.ledger.Rewrite(n.next, n.all())
	if err == nil {
		n.fresh = nil
	}
	return err
}

func (n *Numbers[K]) all() iter.Seq[numberOf] {
	return func(yield func(numberOf) bool) {
		for key, id := range n.byKey {
			if !yield(numbered(id, key.String())) {
				return
			}
		}
		for key, id := range n.kept {
			if !yield(numbered(id, key)) {
				return
			}
		}
	}
}

// Close closes the file.
func (n *Numbers[K]) Close() { n.ledger.Close() }
