package route

import (
	"context"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/internal/table"
)

// devicePatience is how long a device may fail before that is an obstacle: it is tried again sooner.
const devicePatience = 2 * time.Second

// AwaitDevice waits until an agent's device is as its row wants it, and returns the device's index. look reads the row:
// its status, nil if there is no row, the index, and a channel that is closed when the row changes. late is called with
// an error that lasts.
func AwaitDevice(ctx context.Context, look func() (*reconciler.Status, int, <-chan struct{}), late func(why string)) (
	index int, err error) {
	begin := time.Now()
	for {
		var w table.Watch
		status, index, changed := look()
		if status != nil && status.Kind == reconciler.StatusKindDone && index != 0 {
			return index, nil
		}
		isLate := time.Since(begin) >= devicePatience
		if status != nil && status.Kind == reconciler.StatusKindError && isLate {
			late(status.GetError())
		}
		w.Add(changed)
		if !isLate {
			w.After(devicePatience - time.Since(begin))
		}
		if err := w.Wait(ctx); err != nil {
			return 0, err
		}
	}
}
