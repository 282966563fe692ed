package dns

import (
	"net/netip"
	"time"

	"myelin/l7/dns/message"
)

const port = 53

// flow is what a message belongs to.
type flow struct {
	client, server netip.AddrPort
	proto          uint8
}

// verdict is what is to be done with a message.
type verdict uint8

const (
	pass verdict = iota
	drop
	refuse // with the response code of the configuration
)

// Packet decides about an IP packet without a link-layer header, and returns the packet to send on: the packet itself,
// the refusal that answers it, which is in the same memory, or nil if it is dropped. An answer is returned when its
// addresses are in the map.
func (e *Engine) Packet(b []byte) []byte {
	p, ok := message.ReadPacket(b)
	if !ok {
		e.counters.malformed.Add(1)
		return nil
	}
	if p.Fragment != message.Whole {
		return e.fragment(&p, b)
	}
	s := e.scratch.Get().(*scratch)
	defer e.scratch.Put(s)
	f := flow{client: p.Source, server: p.Destination, proto: message.ProtoUDP}
	if e.isAnswer(&p) {
		f.client, f.server = f.server, f.client
		e.answer(s, &f, p.Payload)
		return b
	}
	switch v, end := e.query(s, &f, p.Payload); v {
	case refuse:
		return p.Reply(message.Refuse(p.Payload, end, e.current.Load().rejectCode))
	case drop:
		return nil
	}
	return b
}

// fragment decides about a part of a packet. No query is dropped whole, but one without its first fragment is lost.
func (e *Engine) fragment(p *message.Packet, b []byte) []byte {
	e.counters.fragments.Add(1)
	if p.Fragment == message.LaterFragment || e.isAnswer(p) {
		return b
	}
	f := flow{client: p.Source, server: p.Destination, proto: message.ProtoUDP}
	if e.rules(e.current.Load(), &f).apply() {
		e.counters.denied.Add(1)
		return nil
	}
	return b
}

// isAnswer reports whether a packet goes from a server to a client: it comes from port 53; or, if both ends have that
// port or the server has another one, it is a response. Rules for the flow from its source say otherwise: else a pod
// could choose port 53 as its own to evade them.
func (e *Engine) isAnswer(p *message.Packet) bool {
	from, to := p.Source.Port() == port, p.Destination.Port() == port
	if to && !from {
		return false
	}
	if from == to {
		if h, ok := message.ReadHeader(p.Payload); !ok || !h.Response {
			return false
		}
	}
	c := e.current.Load()
	if c.endpoints[p.Source.Addr()] == nil {
		return true
	}
	f := flow{client: p.Source, server: p.Destination, proto: message.ProtoUDP}
	return !e.rules(c, &f).apply()
}

// query decides about a message from a client. It returns where the questions end, for a refusal.
func (e *Engine) query(s *scratch, f *flow, m []byte) (v verdict, end int) {
	e.counters.queries.Add(1)
	c := e.current.Load()
	rules := e.rules(c, f)
	h, n, end := s.readQuery(m)
	if n == 0 {
		e.counters.malformed.Add(1)
		if rules.apply() {
			v = drop
		}
	}
	for i := range n {
		if !rules.match(s.questions[i].Name.Bytes()) {
			v = refuse
		}
	}
	ep := c.endpoints[f.client.Addr()]
	if v != pass {
		e.counters.denied.Add(1)
	} else if ep != nil && n == 1 {
		now := e.Clock.Monotonic()
		key := e.key(f, h.ID, &s.questions[0])
		ep.mu.Lock()
		ep.pending.add(key, now, rules.epoch)
		ep.mu.Unlock()
	}
	if e.Record != nil && c.records {
		r := s.newRecord(e, ep, f)
		for i := range n {
			r.QueryTypes = append(r.QueryTypes, s.questions[i].Type)
		}
		if n > 0 {
			r.Query = s.questions[0].Name.String()
		}
		if v != pass {
			r.Verdict = Denied
		}
		if v == refuse {
			r.Code = c.rejectCode
		}
		e.Record(r)
	}
	return v, end
}

// readQuery reads the questions of a query, and returns their number, or 0 if they are not understood.
func (s *scratch) readQuery(m []byte) (h message.Header, n, end int) {
	h, ok := message.ReadHeader(m)
	if !ok || h.Response || h.Opcode != 0 || h.Questions == 0 || h.Questions > message.MaxQuestions {
		return h, 0, 0
	}
	end = message.HeaderLen
	for i := range h.Questions {
		if end, ok = s.questions[i].Read(m, end); !ok {
			return h, 0, 0
		}
	}
	return h, h.Questions, end
}

// answer learns from a message of a server. When it returns, the addresses are in the map.
func (e *Engine) answer(s *scratch, f *flow, m []byte) {
	e.counters.answers.Add(1)
	c := e.current.Load()
	ep := c.endpoints[f.client.Addr()]
	h, ok := message.ReadHeader(m)
	if ok = ok && h.Response && h.Questions == 1; ok {
		ok = s.readQuestion(m)
	}
	latency, understood := time.Duration(0), false
	if !ok {
		e.counters.malformed.Add(1)
	} else if ep != nil {
		latency, understood = e.matched(ep, c, f, s, &h, m)
	}
	if e.Record == nil || !c.records {
		return
	}
	r := s.newRecord(e, ep, f)
	r.Source, r.Destination, r.Response, r.Latency = f.server, f.client, true, latency
	if ok {
		r.Code, r.Query = h.Code, s.question.Name.String()
		r.QueryTypes = append(r.QueryTypes, s.question.Type)
	}
	if understood {
		r.fill(&s.answer)
	}
	e.Record(r)
}

// readQuestion reads the question of an answer.
func (s *scratch) readQuestion(m []byte) bool {
	end, ok := s.question.Read(m, message.HeaderLen)
	if ok {
		s.asked = append(s.asked[:0], m[message.HeaderLen:end]...)
		for i, c := range s.asked[:len(s.asked)-4] { // without type and class
			if c >= 'A' && c <= 'Z' {
				s.asked[i] = c + 'a' - 'A'
			}
		}
	}
	return ok
}

// matched takes the query that an answer is for, and learns from the answer.
func (e *Engine) matched(ep *endpoint, c *settings, f *flow, s *scratch, h *message.Header, m []byte,
) (latency time.Duration, understood bool) {
	key, now := e.key(f, h.ID, &s.question), e.Clock.Monotonic()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	q, found := ep.pending.take(key, now)
	if !found {
		q, found = e.passed(ep, f, s, h.ID, now)
	}
	if !found {
		e.counters.unmatched.Add(1)
		return 0, false
	}
	understood = h.Code == 0 && h.Opcode == 0 && s.answer.Read(m, &s.question)
	if !understood {
		s.answer.Addresses = s.answer.Addresses[:0]
		if h.Code == 0 {
			e.counters.malformed.Add(1)
		}
	}
	if !ep.removed {
		until := e.passUntil(c, f, s, h, m, q.epoch)
		e.learn(ep, s, until)
		if e.Questions != nil && f.proto == message.ProtoUDP {
			e.pass(ep, f, s, h.ID, q.epoch, until)
		}
	}
	return time.Duration(max(now, q.sent) - q.sent), understood
}

func (s *scratch) newRecord(e *Engine, ep *endpoint, f *flow) *Record {
	r := &s.record
	*r = Record{
		Time: e.Clock.Now(), Source: f.client, Destination: f.server, Proto: f.proto, QueryTypes: r.QueryTypes[:0],
		AnswerTypes: r.AnswerTypes[:0], Addresses: r.Addresses[:0], CNAMEs: r.CNAMEs[:0],
	}
	if ep != nil {
		r.Slot, r.Known = ep.slot, true
	}
	return r
}

// fill takes what the answer section says.
func (r *Record) fill(a *message.Answer) {
	r.AnswerTypes = append(r.AnswerTypes, a.Types...)
	for i := range a.Chain[1:] {
		r.CNAMEs = append(r.CNAMEs, a.Chain[i+1].String())
	}
	for i, address := range a.Addresses {
		r.Addresses = append(r.Addresses, address.Addr)
		if i == 0 || address.TTL < r.TTL {
			r.TTL = address.TTL
		}
	}
}
