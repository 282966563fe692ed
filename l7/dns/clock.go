package dns

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SystemClock is the clock of the system. Reading it costs no system call.
type SystemClock struct {
	start     time.Time
	monotonic uint64
}

// NewSystemClock returns one.
func NewSystemClock() (SystemClock, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return SystemClock{}, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return SystemClock{start: time.Now(), monotonic: uint64(now.Nano())}, nil
}

// Now is the time of the day.
func (c SystemClock) Now() time.Time { return time.Now() }

// Monotonic relies on Go's own clock, which is CLOCK_MONOTONIC with another zero.
func (c SystemClock) Monotonic() uint64 { return c.monotonic + uint64(time.Since(c.start)) }
