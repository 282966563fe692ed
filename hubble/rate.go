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
	return between(r.samples[0], sample{now, count})
}

// peak is the highest rate between two samples of the last minute.
func (r *rate) peak() (most float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 1; i < len(r.samples); i++ {
		most = max(most, between(r.samples[i-1], r.samples[i]))
	}
	return most
}

// between is the rate per second between two samples.
func between(from, to sample) float64 {
	took := to.at.Sub(from.at).Seconds()
	if took <= 0 || to.count < from.count {
		return 0
	}
	return float64(to.count-from.count) / took
}
