package table

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/statedb"
)

// WaitChange returns when a channel of the set closes, after a time at most, or when ctx ends.
func WaitChange(ctx context.Context, set *statedb.WatchSet, most time.Duration) error {
	soon, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if _, err := set.Wait(soon, 0); err != nil && soon.Err() == nil {
		return fmt.Errorf("wait for tables: %w", err)
	}
	return nil
}

// RetryAfter is the delay after a number of failures in a row, which grows up to 30 s.
func RetryAfter(failures int) time.Duration {
	return min(100*time.Millisecond<<min(failures, 9), 30*time.Second)
}
