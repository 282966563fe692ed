package dns

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Verdict is what happened to a message.
type Verdict uint8

// Messages that are denied are dropped, or answered with a refusal.
const (
	Forwarded Verdict = iota
	Denied
)

// String is "forwarded" or "denied".
func (v Verdict) String() string { return [...]string{"forwarded", "denied"}[v] }

// Record is a query or an answer, with the fields of Hubble's flow.DNS.
type Record struct {
	Time time.Time
	// Slot is that of the pod that asks; Known says whether the configuration has it.
	Slot  uint16
	Known bool
	// Source and Destination are those of the message.
	Source, Destination netip.AddrPort
	Proto               uint8
	Response            bool
	Verdict             Verdict
	// Query is the name of the question, with a final dot; empty if the message is not understood.
	Query string
	// QueryTypes and AnswerTypes are types of records (RFC 1035, section 3.2.2).
	QueryTypes, AnswerTypes []uint16
	Code                    uint8
	// Addresses and CNAMEs are what the answer says about the question; TTL is the lowest one, in seconds.
	Addresses []netip.Addr
	CNAMEs    []string
	TTL       uint32
	// Latency is the time since the query, of an answer that matches one.
	Latency time.Duration
}

// Counters are numbers since the start of the engine.
type Counters struct {
	Queries, Answers, Denied uint64
	// Unmatched answers have no query.
	Unmatched uint64
	// Malformed messages and packets are not understood.
	Malformed, Fragments uint64
	// PutFailed counts addresses that could not be written to the map: connections to them are denied.
	PutFailed uint64
	// SelectorsDropped counts how often a selector was left out since an address has more than MaxSelectors.
	SelectorsDropped uint64
	// Evicted counts pairs of names and addresses that gave way to others before their TTL ended.
	Evicted uint64
}

type counters struct {
	queries, answers, denied, unmatched, malformed, fragments, putFailed, selectorsDropped, evicted atomic.Uint64
}

// Counters are the present ones.
func (e *Engine) Counters() Counters {
	c := &e.counters
	return Counters{
		Queries: c.queries.Load(), Answers: c.answers.Load(), Denied: c.denied.Load(), Unmatched: c.unmatched.Load(),
		Malformed: c.malformed.Load(), Fragments: c.fragments.Load(), PutFailed: c.putFailed.Load(),
		SelectorsDropped: c.selectorsDropped.Load(), Evicted: c.evicted.Load(),
	}
}
