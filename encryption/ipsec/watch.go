package ipsec

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"

	"myelin/internal/table"
)

// readEvery is how often the file of the key is read. Kubernetes replaces it by a link, as much as a minute after the
// Secret has changed.
const readEvery = 2 * time.Second

// runKeys follows the file of the key and ends keys that were replaced.
func (e *IPsec) runKeys(ctx context.Context, _ cell.Health) error {
	read := true
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		next, err := e.turn(read)
		if err != nil {
			e.params.Log.Warn("keys of IPsec are not ended", "error", err)
			next = e.params.Now().Add(readEvery)
		}
		// Without a watcher the key is that of the agent's start, once it could be read.
		read = e.params.Options.KeyWatcher || e.keyError() != nil
		if read {
			w.After(readEvery)
		}
		if !next.IsZero() {
			w.After(max(next.Sub(e.params.Now()), 0))
		}
		return nil
	})
}

// turn reads the file if it is to, and ends keys; next: when the next key ends.
func (e *IPsec) turn(read bool) (next time.Time, err error) {
	var s *secret
	var keyErr error
	if read {
		s, keyErr = readSecret(e.params.Options.KeyPath())
	}
	now := e.params.Now()
	e.mu.Lock()
	taken := false
	if s != nil {
		taken, keyErr = e.ring.take(s, now)
	}
	before := len(e.ring.held)
	next, err = e.ring.expire(now)
	ended := len(e.ring.held) != before
	if read && !sameError(e.keyErr, keyErr) {
		if keyErr != nil {
			e.params.Log.Warn("the key of IPsec can't be used", "error", keyErr)
		}
		e.keyErr = keyErr
	}
	e.mu.Unlock()
	if taken {
		e.params.Log.Info("a key of IPsec is in use", "id", s.ID)
	}
	if taken || ended {
		e.notify()
	}
	if err != nil {
		return next, fmt.Errorf("end keys of IPsec: %w", err)
	}
	return next, nil
}

func sameError(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// keyError says why the key can't be used, nil if it can.
func (e *IPsec) keyError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keyErr
}
