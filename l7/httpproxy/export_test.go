package httpproxy

import "time"

// Looped is how many connections loops relay.
func (p *Proxy) Looped() int {
	p.loops.mu.Lock()
	defer p.loops.mu.Unlock()
	n := 0
	for _, l := range p.loops.list {
		l.mu.Lock()
		n += l.count
		l.mu.Unlock()
	}
	return n
}

// SetDrainIdle changes how long connections may be idle while the proxy drains.
func (p *Proxy) SetDrainIdle(d time.Duration) { p.drain.idleTime = d }
