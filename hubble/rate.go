package hubble

import (
	"sync"
	"time"
)

// rateSpan is the time that a rate is taken over.
const rateSpan = time.Minute

// rate is how fast a counter grows.
type rate struct {
	mu      sync.Mutex
	samples []sample // the oldest first, of the last rateSpan and one before
}

type sample struct {
	at    time.Time
	count uint64
}

// add notes the counter's value. It is called every second or so.
func (r *rate) add(now time.Time, count uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, sample{now, count})
	for len(r.samples) > 2 && now.Sub(r.samples[1].at) >= rateSpan {
		r.samples = r.samples[1:]
	}
}

// perSecond is the mean of the last minute, or of the time since the first sample.
func (r *rate) perSecond(now time.Time, count uint64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == 0 {
		return 0
	}
	first := r.samples[0]
	took := now.Sub(first.at).Seconds()
	if took <= 0 || count < first.count {
		return 0
	}
	return float64(count-first.count) / took
}
