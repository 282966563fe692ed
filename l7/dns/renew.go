package dns

import (
	"time"

	"myelin/l7/dns/message"
)

const (
	// RenewInterval is how often Renew is to be called.
	RenewInterval = 500 * time.Millisecond
	// renewTime is how long after it was written a question is looked at: before passTime has ended.
	renewTime = passTime * 2 / 3
	// maxRenewed is how many questions a call of Renew looks at: as many as there are between renewTime and passTime.
	maxRenewed = 2048
)

// Renew learns from answers that have passed in the datapath, as it has noted them, so that the next ones need not pass
// through the engine because their TTLs have not counted down. It has the effect of the last of these answers.
func (e *Engine) Renew() {
	if e.Questions == nil {
		return
	}
	s := e.scratch.Get().(*scratch)
	defer e.scratch.Put(s)
	var due []Question
	left := maxRenewed
	for _, ep := range e.all() {
		due = ep.due(due[:0], e.Clock.Monotonic(), left)
		left -= len(due)
		for i := range due {
			ep.mu.Lock() // for one at a time: messages do not wait for all
			e.renew(ep, s, due[i])
			ep.mu.Unlock()
		}
	}
}

// due appends questions that are to be looked at, up to n.
func (ep *endpoint) due(list []Question, now uint64, n int) []Question {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for key, q := range ep.questions {
		if len(list) >= n {
			break
		}
		if q.renew <= now {
			list = append(list, key)
		}
	}
	return list
}

// renew learns what the datapath has seen of the answers to a question. The caller holds ep.mu.
func (e *Engine) renew(ep *endpoint, s *scratch, key Question) {
	q, now := ep.questions[key], e.Clock.Monotonic()
	if q == nil || ep.removed {
		return
	}
	q.renew = now + renewTime
	known, found := e.Questions.GetQuestion(&key)
	until := known.SeenUntil + passTime
	// Where TTLs count down, answers pass until the entry expires.
	if !found || known.SeenUntil == 0 || until <= known.Expires {
		return
	}
	if _, ok := s.question.Read([]byte(key.Text), 0); !ok {
		return
	}
	s.asked = append(s.asked[:0], key.Text...)
	a := &s.answer
	a.Chain, a.Addresses = append(a.Chain[:0], s.question.Name), a.Addresses[:0]
	for _, addr := range known.Seen {
		ttl := (max(known.SeenUntil, now) - now) / uint64(time.Second)
		a.Addresses = append(a.Addresses, message.Address{Addr: addr, TTL: uint32(ttl)})
	}
	e.learn(ep, s, until)
	e.pass(ep, &flow{server: key.Server, proto: message.ProtoUDP}, s, 0, known.Epoch, until)
}
