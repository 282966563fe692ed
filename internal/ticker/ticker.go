// Package ticker has tickers whose ticks fall together, so that an idle process wakes up once for all of them.
package ticker

import "time"

// Ticker ticks at multiples of intervals, which may change from tick to tick.
type Ticker struct{ timer *time.Timer }

// New returns a ticker that does not tick until Next is called. It is for one goroutine.
func New() *Ticker { return &Ticker{} }

// Next returns a channel that receives the time when the clock next shows a multiple of interval, which is more than 0,
// and no other time before Next is called again. Ticks that were missed are dropped.
func (t *Ticker) Next(interval time.Duration) <-chan time.Time {
	wait := interval - time.Duration(time.Now().UnixNano())%interval
	if t.timer == nil {
		t.timer = time.NewTimer(wait)
	} else {
		t.timer.Reset(wait)
	}
	return t.timer.C
}
