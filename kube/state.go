package kube

import (
	"fmt"
	"strings"
	"time"
)

// kindState is what is known of the server and a kind; guarded by Source.mu.
type kindState struct {
	listed  bool // at least once
	missing bool // the server has no such kind
	problem string
	found   chan struct{} // its definition was seen
	seen    time.Time     // when it was
}

// known reports whether there is nothing to wait for.
func (k *kindState) known() bool { return k.listed || k.missing }

// State is how a Source is doing.
type State struct {
	Server string
	// ByService reports whether the server is reached by the address of its Service, which something has to translate.
	ByService bool
	// Synced says that all that the server had was written to the tables once.
	Synced bool
	// LastContact is when the server was last heard of; zero: never.
	LastContact time.Time
	// Problem is why it is not heard of now, since Since; empty if it is.
	Problem string
	Since   time.Time
	// Failed counts requests without an answer, or with one of 500 and above.
	Failed uint64
	Kinds  []Kind
}

// Kind is what there is of one kind.
type Kind struct {
	Name    string
	Objects int
	Refused int // of them; their last good versions are in force
	// Listed says that the server told of them at least once, Missing that it has
	// no such kind.
	Listed, Missing bool
	// Problem is why they can't be listed; empty if they can.
	Problem string
}

// State tells how it is, and when it is another way: the channel closes then.
func (s *Source) State() (State, <-chan struct{}) {
	refused := map[string]map[string]bool{}
	for p := range s.problems.All(s.DB.ReadTxn()) {
		kind := kindOf(p.Object)
		if refused[kind] == nil {
			refused[kind] = map[string]bool{}
		}
		refused[kind][p.Object] = true
	}
	txn := s.DB.ReadTxn()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.Server.contact
	c.mu.Lock()
	defer c.mu.Unlock()
	out := State{
		Server: s.Server.address(), ByService: s.Server.byService, Synced: s.synced,
		LastContact: c.last, Problem: c.problem, Since: c.since, Failed: c.failed,
	}
	for _, k := range s.kinds {
		state := s.states[k]
		out.Kinds = append(out.Kinds, Kind{
			Name: k.Kind, Objects: k.rows.count(txn), Refused: len(refused[k.Kind]), Listed: state.listed,
			Missing: state.missing, Problem: state.problem,
		})
	}
	return out, s.changed
}

// Obstacle is what keeps the server's objects from being known, as text; empty
// if nothing does.
func (s *State) Obstacle() string {
	if s.Problem != "" {
		return fmt.Sprintf("the API server %s can't be reached: %s", s.Server, s.Problem)
	}
	for _, k := range s.Kinds {
		if k.Problem != "" {
			return fmt.Sprintf("%s can't be listed: %s", k.Name, k.Problem)
		}
	}
	return ""
}

// contact says when the server has gone, and when it is back.
func (s *Source) contact() {
	c := s.Server.contact
	c.mu.Lock()
	problem, said := c.problem, c.said
	c.said = problem != ""
	c.mu.Unlock()
	switch {
	case problem != "" && !said:
		s.Log.Warn("the API server doesn't answer; what it said stays in force", "server", s.Server.address(), "error",
			problem)
	case problem == "" && said:
		s.Log.Info("the API server answers again", "server", s.Server.address())
	}
	s.tell()
}

// tell wakes callers that wait for another state.
func (s *Source) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellLocked()
}

func (s *Source) tellLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// set changes what is known of a kind.
func (s *Source) set(k *kind, next kindState) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.states[k]
	next.found, next.seen = old.found, old.seen
	if *old == next {
		return false
	}
	*old = next
	s.tellLocked()
	return true
}

func (s *Source) state(k *kind) kindState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.states[k]
}

// listed notes that the server has told of all objects of a kind.
func (s *Source) listed(k *kind) {
	if old := s.state(k); s.set(k, kindState{listed: true}) && (old.missing || old.problem != "") {
		s.Log.Info("the API server tells of a kind", "kind", k.Kind)
	}
}

// failed notes that it doesn't.
func (s *Source) failed(k *kind, err error) {
	next := s.state(k)
	next.problem = err.Error()
	if s.set(k, next) {
		s.Log.Warn("the API server doesn't tell of a kind", "kind", k.Kind, "error", err)
	}
}

// absent notes that the server has no such kind. What is in force stays, if
// there is anything: its objects are told of as deleted before their kind is.
func (s *Source) absent(k *kind) {
	if s.set(k, kindState{listed: s.state(k).listed, missing: true}) {
		s.Log.Info("the API server has no such kind", "kind", k.Kind)
		s.poke()
	}
}

// forbidden notes that there is no right to a kind, without which all else goes on. What is in force stays.
func (s *Source) forbidden(k *kind, err error) {
	if s.set(k, kindState{listed: s.state(k).listed, missing: true, problem: err.Error()}) {
		s.Log.Warn("the API server does not permit to read a kind", "kind", k.Kind, "namespace", k.namespace,
			"error", err)
		s.poke()
	}
}

// find makes followers that wait for a kind look again, now and for some seconds.
func (s *Source) find(k *kind) {
	s.mu.Lock()
	s.states[k].seen = time.Now()
	found := s.states[k].found
	s.mu.Unlock()
	select {
	case found <- struct{}{}:
	default:
	}
}

// kindOf is the kind of a problem's object.
func kindOf(object string) string {
	kind, _, _ := strings.Cut(object, " ")
	return kind
}
