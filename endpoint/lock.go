package endpoint

import (
	"context"
	"fmt"
	"sync"
)

// locks serialises what happens to one attachment and nothing else.
type locks struct {
	mu   sync.Mutex
	held map[Attachment]*lock
}

type lock struct {
	turn  chan struct{} // full while the lock is held
	users int           // holder and waiters
}

// acquire waits for the attachment's turn, at most as long as ctx.
func (l *locks) acquire(ctx context.Context, a Attachment) (release func(), err error) {
	l.mu.Lock()
	k := l.held[a]
	if k == nil {
		k = &lock{turn: make(chan struct{}, 1)}
		l.held[a] = k
	}
	k.users++
	l.mu.Unlock()

	// The turn ends under mu: the next holder's leave comes after this one's.
	leave := func(holds bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if holds {
			<-k.turn
		}
		if k.users--; k.users == 0 {
			delete(l.held, a)
		}
	}
	select {
	case k.turn <- struct{}{}:
		return func() { leave(true) }, nil
	case <-ctx.Done():
		leave(false)
		return nil, fmt.Errorf("wait for the operation on %s that runs already: %w", a, context.Cause(ctx))
	}
}
