// Package dns decides about DNS messages of pods, and learns from the answers which addresses the names of policies
// have. It knows nothing of how packets get to it, and needs no agent.
package dns

import (
	"hash/maphash"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"myelin/l7/config"
	"myelin/l7/dns/message"
)

// Limits.
const (
	// MaxSelectors is how many selectors an address of an endpoint has in the map.
	MaxSelectors = 8
	// MaxLinks is how many pairs of a name and an address all endpoints together have, beyond ReservedLinks.
	MaxLinks = 1 << 18
	// ReservedLinks is how many of them each endpoint may have in any case. It may also have as many whose name no
	// policy selects, which are kept for policies to come.
	ReservedLinks = 1 << 10
	// CollectInterval is how often Collect is to be called.
	CollectInterval = time.Minute
	// Hold is how long entries of the map are valid after the TTL has ended. Collect deletes them much earlier: this is
	// for the time that it takes until Collect runs, and closes what is open if the process is dead. Connections to an
	// address with a TTL of 0 depend on it.
	Hold = 3 * CollectInterval
)

// defaultAddressesPerName is Cilium's default of endpointMaxIpPerHostname.
const defaultAddressesPerName = 1000

// Entry is what the map says about an address.
type Entry struct {
	// Selectors are the numbers of at most MaxSelectors selectors. The slice is valid during the call of Put only.
	Selectors []uint32
	// Expires is in nanoseconds of CLOCK_MONOTONIC.
	Expires uint64
}

// Map is the BPF map `names`, by endpoint slot and address. An entry stays until it is deleted or has expired. The
// methods may be called by several goroutines at once.
type Map interface {
	Put(slot uint16, a netip.Addr, e Entry) error
	// Delete returns no error for an entry that does not exist.
	Delete(slot uint16, a netip.Addr) error
}

// Params are what an engine works with.
type Params struct {
	Map   Map
	Clock Clock
	Log   *slog.Logger
	// Questions is where the engine writes which messages need not pass through it; nil: all pass through it.
	Questions Questions
	// Rules returns what the conntrack entry of a flow from source has. For the flow's other direction, from the server
	// to the client, it is to return none.
	Rules func(source, destination netip.AddrPort, proto uint8) FlowRules
	// Record, if not nil, is called for each query and answer if the configuration wants records. The record is valid
	// during the call only.
	Record func(*Record)
}

// FlowRules is what a conntrack entry says about policies.
type FlowRules struct {
	// Numbers are those of the rules (config.Rule) that allow the flow. A query must satisfy both; zero means none. A
	// number that the configuration does not have refuses.
	Numbers [2]uint32
	// Epoch is that of the policies then; 0: it is not known.
	Epoch uint32
}

// Engine decides and learns. Its methods may be called by several goroutines at once.
type Engine struct {
	Params
	counters  counters
	seed      maphash.Seed
	links     atomic.Int64 // of all endpoints
	questions atomic.Int64 // in the map
	scratch   sync.Pool
	current   atomic.Pointer[settings]
	putLog    limiter
	fullLog   limiter

	mu        sync.Mutex // held while endpoints change
	endpoints map[uint16]*endpoint
	rewrite   bool // endpoints were removed since the last Save
}

// scratch is the memory of one call.
type scratch struct {
	question  message.Question
	questions [message.MaxQuestions]message.Question
	answer    message.Answer
	record    Record
	found     []uint32
	text      []byte
	asked     []byte // the question of an answer as in the message, in lower case
}

// New returns an engine without a configuration: it passes what no rule applies to, and learns nothing.
func New(p Params) *Engine {
	e := &Engine{Params: p, seed: maphash.MakeSeed(), endpoints: map[uint16]*endpoint{}}
	e.scratch.New = func() any { return new(scratch) }
	e.current.Store(newSettings(&config.Config{}))
	return e
}

// Clock tells the time.
type Clock interface {
	Now() time.Time
	// Monotonic is CLOCK_MONOTONIC in nanoseconds, as BPF programs have it.
	Monotonic() uint64
}

// limiter lets a message through at most every ten seconds.
type limiter struct{ last atomic.Uint64 }

func (l *limiter) allow(now uint64) bool {
	last := l.last.Load()
	return (last == 0 || now >= last+uint64(10*time.Second)) && l.last.CompareAndSwap(last, now)
}
