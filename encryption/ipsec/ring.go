package ipsec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"myelin/internal/durable"
)

// held is a secret, and until when packets with it are accepted; the current one has no end.
type held struct {
	secret

	Until time.Time `json:",omitzero"`
}

// ring has the current secret, and those that it has replaced within the last rotation. It is kept in a file, so that
// an agent that starts in the middle of a rotation goes on with it. Not safe for concurrent use.
type ring struct {
	path string
	keep time.Duration // how long a replaced secret is accepted
	held []held        // newest first
}

// openRing reads the file, if there is one.
func openRing(path string, keep time.Duration) (*ring, error) {
	r := &ring{path: path, keep: keep}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys in use: %w", err)
	}
	if json.Unmarshal(data, &r.held) != nil { // not the error, which may have a part of a key in it
		return nil, fmt.Errorf("file %s does not have the keys in use: remove it", path)
	}
	return r, nil
}

// current is the newest secret, nil if there is none.
func (r *ring) current() *held {
	if len(r.held) == 0 {
		return nil
	}
	return &r.held[0]
}

// list are all secrets, newest first. The result is not changed later.
func (r *ring) list() []held { return slices.Clone(r.held) }

// take makes the secret the current one, and reports whether that is a change. An identifier that is in use must stay
// with its key, because packets and nodes name keys by it.
func (r *ring) take(s *secret, now time.Time) (changed bool, err error) {
	next := slices.Clone(r.held)
	i := slices.IndexFunc(next, func(h held) bool { return h.ID == s.ID })
	if i >= 0 && !next[i].equal(s) {
		return false, fmt.Errorf("another key has the identifier %d already: give the new key the next one", s.ID)
	}
	if i == 0 {
		return false, nil
	}
	if i > 0 {
		next = slices.Delete(next, i, i+1)
	}
	if len(next) > 0 {
		next[0].Until = now.Add(r.keep)
	}
	return true, r.store(slices.Insert(next, 0, held{secret: *s}))
}

// expire forgets secrets that have ended, and returns when to look again; zero: not before the next change.
func (r *ring) expire(now time.Time) (next time.Time, err error) {
	left := slices.DeleteFunc(slices.Clone(r.held), func(h held) bool {
		return !h.Until.IsZero() && !now.Before(h.Until)
	})
	if len(left) != len(r.held) {
		err = r.store(left)
	}
	for _, h := range r.held {
		if !h.Until.IsZero() && (next.IsZero() || h.Until.Before(next)) {
			next = h.Until
		}
	}
	return next, err
}

// store writes the file, and only then makes the secrets those of the ring.
func (r *ring) store(next []held) error {
	data, err := json.Marshal(next)
	if err == nil {
		err = durable.Write(r.path, data)
	}
	if err != nil {
		return fmt.Errorf("write the keys in use: %w", err)
	}
	r.held = next
	return nil
}

// outbound picks the secret for packets to a node that has published the identifier of its newest key: that one if it
// is here, or else the current one.
func outbound(list []held, published int) *held {
	for i := range list {
		if list[i].ID == published {
			return &list[i]
		}
	}
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}
