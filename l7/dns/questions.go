package dns

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"myelin/l7/dns/message"
)

// Limits of questions whose messages pass without the engine.
const (
	// maxQuestions is how many there are, as in the map. An endpoint may have three times as many as are free, and
	// gives up one of its own if it has as many.
	maxQuestions = 1 << 15
	// MaxQuestionLen is how many bytes of a message a question has, and maxQuestionLabels how many labels its name.
	MaxQuestionLen    = 96
	maxQuestionLabels = 15
	// MaxQuestionAddresses is how many addresses an answer has.
	MaxQuestionAddresses = 8
	// passTime is how long answers with the same TTL pass until the engine has to see one again. So long, addresses are
	// in the map after their TTL has ended.
	passTime = uint64(30 * time.Second)
)

// Question is what an endpoint asks a server by UDP.
type Question struct {
	Slot   uint16
	Server netip.AddrPort
	Text   string // the bytes of the message: name, type and class
}

// Passing is what may pass without the engine: queries until Expires, and answers with no other addresses and
// with TTLs that end before.
type Passing struct {
	Epoch     uint32 // that of Flow
	Expires   uint64 // nanoseconds of CLOCK_MONOTONIC
	Addresses []netip.Addr
	// Seen are those of Addresses that answers which have passed had, and SeenUntil is when the longest TTL of these
	// answers ends; 0: none has passed. The datapath writes both; PutQuestion clears them.
	Seen      []netip.Addr
	SeenUntil uint64
	// Pending are the queries that have passed, and whose answers have not. The datapath writes them.
	Pending []Pending
}

// Pending is a query without an answer.
type Pending struct {
	Port, ID uint16 // of the client
	Sent     uint64 // nanoseconds of CLOCK_MONOTONIC
}

// Questions is the BPF map `dns_entries`. The methods may be called by several goroutines at once.
type Questions interface {
	PutQuestion(*Question, *Passing) error
	GetQuestion(*Question) (Passing, bool)
	// DeleteQuestion returns no error for a question that does not exist.
	DeleteQuestion(*Question) error
}

// question is one that an endpoint has in the map.
type question struct {
	expires uint64
	renew   uint64 // when Renew is to look at it
	name    *name  // nil: without addresses
}

// Passing is how many questions of all endpoints have messages that may pass without the engine.
func (e *Engine) Passing() int { return int(e.questions.Load()) }

// passed finds the query of an answer among those that have passed without the engine.
func (e *Engine) passed(ep *endpoint, f *flow, s *scratch, id uint16, now uint64) (q query, found bool) {
	if e.Questions == nil || f.proto != message.ProtoUDP || len(s.asked) > MaxQuestionLen {
		return q, false
	}
	known, found := e.Questions.GetQuestion(&Question{ep.slot, f.server, string(s.asked)})
	if !found {
		return q, false
	}
	for _, p := range known.Pending {
		if p.Port == f.client.Port() && p.ID == id && now <= p.Sent+pendingTime {
			return query{sent: p.Sent, epoch: known.Epoch}, true
		}
	}
	return q, false
}

// passUntil is until when messages like an answer, which matches a query, may pass; 0: they may not. The question's
// bytes are in s.asked in lower case.
func (e *Engine) passUntil(c *settings, f *flow, s *scratch, h *message.Header, m []byte, epoch uint32) uint64 {
	records := int(binary.BigEndian.Uint16(m[6:]))
	if e.Questions == nil || !c.pass || epoch == 0 || f.proto != message.ProtoUDP || h.Truncated || h.Opcode != 0 ||
		len(s.asked) > MaxQuestionLen || labels(s.asked) > maxQuestionLabels ||
		!bytes.Equal(s.asked, m[message.HeaderLen:][:len(s.asked)]) {
		return 0
	}
	until := e.Clock.Monotonic() + passTime
	if records == 0 {
		return until
	}
	a, kind := &s.answer, dnsmessage.Type(s.question.Type)
	if h.Code != 0 || len(a.Chain) != 1 || len(a.Addresses) != records || records > MaxQuestionAddresses ||
		kind != dnsmessage.TypeA && kind != dnsmessage.TypeAAAA {
		return 0
	}
	var ttl uint64
	for _, address := range a.Addresses {
		ttl = max(ttl, seconds(address.TTL), c.minTTL)
	}
	return until + ttl
}

// labels is how many labels the name of a question has.
func labels(text []byte) (n int) {
	for at := 0; at < len(text) && text[at] != 0; at += int(text[at]) + 1 {
		n++
	}
	return n
}

// pass writes that messages like the answer in s may pass until then, or that they may not. The caller holds ep.mu, and
// has learnt the answer.
func (e *Engine) pass(ep *endpoint, f *flow, s *scratch, id uint16, epoch uint32, until uint64) {
	key := Question{ep.slot, f.server, string(s.asked)}
	had := ep.questions[key]
	if until == 0 || had == nil && !e.questionRoom(ep) {
		e.forget(ep, key)
		return
	}
	next := Passing{Epoch: epoch, Expires: until}
	for _, a := range s.answer.Addresses {
		kept := ep.addresses[a.Addr]
		if kept == nil || kept.tried && !kept.written {
			e.forget(ep, key)
			return
		}
		next.Addresses = append(next.Addresses, a.Addr)
	}
	if had != nil {
		known, _ := e.Questions.GetQuestion(&key)
		for _, p := range known.Pending {
			if p.Port != f.client.Port() || p.ID != id {
				next.Pending = append(next.Pending, p)
			}
		}
	}
	if err := e.Questions.PutQuestion(&key, &next); err != nil {
		e.forget(ep, key)
		if e.putLog.allow(e.Clock.Monotonic()) {
			e.Log.Warn("DNS messages do not pass without the proxy", "pod", ep.pod, "error", err)
		}
		return
	}
	e.note(ep, key, &question{expires: until, renew: e.Clock.Monotonic() + renewTime,
		name: ep.names[string(s.question.Name.Bytes())]}, len(next.Addresses) > 0)
}

// note keeps what has been written. addressed: it has addresses.
func (e *Engine) note(ep *endpoint, key Question, q *question, addressed bool) {
	if !addressed {
		q.name = nil
	}
	if ep.questions == nil {
		ep.questions = map[Question]*question{}
	}
	had := ep.questions[key]
	if had == nil {
		e.questions.Add(1)
	} else {
		had.name.unask(key)
	}
	ep.questions[key] = q
	if q.name != nil {
		q.name.questions = append(q.name.questions, key)
	}
}

// unask removes a question of the name.
func (n *name) unask(key Question) {
	if n == nil {
		return
	}
	if i := slices.Index(n.questions, key); i >= 0 {
		n.questions = slices.Delete(n.questions, i, i+1)
	}
}

// questionRoom makes room for a question of an endpoint; false if there is none. Of some questions of the endpoint, the
// one gives way that expires first.
func (e *Engine) questionRoom(ep *endpoint) bool {
	for {
		free := maxQuestions - int(e.questions.Load())
		if len(ep.questions) < 3*free {
			return true
		}
		if len(ep.questions) == 0 {
			return false
		}
		const sample = 8
		var first Question
		expires, seen := ^uint64(0), 0
		for key, q := range ep.questions {
			if q.expires < expires {
				first, expires = key, q.expires
			}
			if seen++; seen == sample {
				break
			}
		}
		e.forget(ep, first)
	}
}

// forget has the messages of a question pass through the engine from now on, and takes over the queries that have no
// answer. The caller holds ep.mu.
func (e *Engine) forget(ep *endpoint, key Question) {
	had := ep.questions[key]
	if had == nil {
		return
	}
	known, _ := e.Questions.GetQuestion(&key)
	if err := e.Questions.DeleteQuestion(&key); err != nil {
		// The datapath goes on until the entry expires: it must not have addresses that are to be forgotten.
		if e.putLog.allow(e.Clock.Monotonic()) {
			e.Log.Error("A DNS question can't be deleted from the map", "pod", ep.pod, "error", err)
		}
	}
	had.name.unask(key)
	delete(ep.questions, key)
	e.questions.Add(-1)
	var q message.Question
	if _, ok := q.Read([]byte(key.Text), 0); !ok {
		return
	}
	for _, own := range ep.own {
		if own.Is4() != key.Server.Addr().Is4() {
			continue
		}
		for _, p := range known.Pending {
			f := flow{client: netip.AddrPortFrom(own, p.Port), server: key.Server, proto: message.ProtoUDP}
			ep.pending.add(e.key(&f, p.ID, &q), p.Sent, known.Epoch)
		}
	}
}

// forgetAll forgets all questions of an endpoint, or those that expired so long ago that no answer is waited for. The
// caller holds ep.mu.
func (e *Engine) forgetAll(ep *endpoint, expired bool, now uint64) {
	for key, q := range ep.questions {
		if !expired || q.expires+pendingTime <= now {
			e.forget(ep, key)
		}
	}
}
