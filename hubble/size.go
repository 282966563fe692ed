package hubble

import "time"

// Sizing has a ring's capacity follow the rate of flows: it keeps those of a time, within bounds. Bounds are capacities
// as NewRing takes them.
type Sizing struct {
	Least, Most int
	Keep        time.Duration
}

// capacity is the one for a rate.
func (s *Sizing) capacity(perSecond float64) int {
	n := s.Least
	for n < s.Most && float64(n) < perSecond*s.Keep.Seconds() {
		n = 2*n + 1
	}
	return n
}
