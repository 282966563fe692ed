package gateway

import (
	"slices"
	"strconv"
	"strings"
	"time"

	apiv1 "myelin/api/v1"
)

// The directions of a row.
const (
	To   = "to"   // a peer in myelin.gateway.peers, which gets the flows of this node
	From = "from" // a peer that has connected, and sends its flows
)

// The states of a peer.
const (
	Connected  = "connected"
	Connecting = "connecting"
	ThisNode   = "this node"
)

// Peer is a row of the table "peers".
type Peer struct {
	Direction string `json:"direction"`
	Address   string `json:"address"`
	Node      string `json:"node,omitempty"` // as the peer says
	State     string `json:"state"`
	Draining  bool   `json:"draining,omitempty"`
	// Flows that were sent or received since the agent's start, or since the peer has connected.
	Flows  uint64 `json:"flows"`
	Behind int64  `json:"behind"` // flows that the peer does not have yet
	// Refused are flows by the reason why the receiver has not taken them over.
	Refused map[string]uint64 `json:"refused,omitempty"`
	Since   time.Time         `json:"since,omitzero"` // of the state
	Error   string            `json:"error,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*Peer) TableHeader() []string {
	return []string{"Direction", "Peer", "Node", "State", "Flows", "Behind", "Refused", "Since", "Error"}
}

// TableRow is the row as text.
func (p *Peer) TableRow() []string {
	state, since := p.State, ""
	if p.Draining {
		state += ", draining"
	}
	if !p.Since.IsZero() {
		since = p.Since.UTC().Format(time.RFC3339)
	}
	return []string{
		p.Direction, p.Address, p.Node, state, strconv.FormatUint(p.Flows, 10), strconv.FormatInt(p.Behind, 10),
		p.Refusals(), since, p.Error,
	}
}

// Refusals is "no_backend: 3, snat_address: 1".
func (p *Peer) Refusals() string {
	var list []string
	for reason, n := range p.Refused {
		list = append(list, reason+": "+strconv.FormatUint(n, 10))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// refusals is the number of flows that were not taken over.
func (p *Peer) refusals() (n uint64) {
	for _, of := range p.Refused {
		n += of
	}
	return n
}

// ResultName is a result as it is shown: "installed", "no_backend".
func ResultName(r apiv1.PeerFlowResult) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "PEER_FLOW_RESULT_"))
}

func refusedOf(results map[apiv1.PeerFlowResult]uint64) map[string]uint64 {
	var refused map[string]uint64
	for r, n := range results {
		if r < firstRefusal || n == 0 {
			continue
		}
		if refused == nil {
			refused = map[string]uint64{}
		}
		refused[ResultName(r)] = n
	}
	return refused
}

// Peers are those in the configuration, and those that send.
func (g *Gateway) Peers() []*Peer {
	var list []*Peer
	for _, s := range g.senders {
		list = append(list, s.row())
	}
	if g.receiver == nil {
		return list
	}
	streams, _ := g.receiver.list()
	for _, x := range streams {
		list = append(list, x.row())
	}
	return list
}

func (s *sender) row() *Peer {
	x := s.session.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &Peer{
		Direction: To, Address: s.address.String(), State: Connecting, Flows: s.sent.Load(),
		Refused: refusedOf(s.results), Since: s.since,
	}
	switch {
	case s.own:
		p.State = ThisNode
	case x != nil && x.walked.Load():
		p.State, p.Behind = Connected, max(x.behind.Load(), 0)
	case s.err != nil:
		p.Error = s.err.Error()
	}
	return p
}

func (x *stream) row() *Peer {
	results := map[apiv1.PeerFlowResult]uint64{}
	for i := range x.results {
		results[apiv1.PeerFlowResult(i)] = x.results[i].Load()
	}
	name := ""
	if node := x.node.Load(); node != nil {
		name = strconv.QuoteToASCII(*node)
		name = name[1 : len(name)-1] // a peer can say anything
	}
	return &Peer{
		Direction: From, Address: x.from.String(), Node: name, State: Connected, Draining: x.draining.Load(),
		Flows: x.received.Load(), Refused: refusedOf(results), Since: x.since,
	}
}

// ListenError is why peers cannot connect, nil if they can or if there are none.
func (g *Gateway) ListenError() error {
	if g.receiver == nil {
		return nil
	}
	_, err := g.receiver.list()
	return err
}

// Synchronised reports whether every peer knows every flow of this node, so that it can be stopped while no flow is
// active. It is false without peers.
func (g *Gateway) Synchronised() bool {
	flows, others := g.Flows(), 0
	for _, p := range g.Peers() {
		if p.Direction != To || p.State == ThisNode {
			continue
		}
		if others++; p.State != Connected || p.Behind > 0 || p.refusals() > 0 {
			return false
		}
	}
	return others > 0 && flows != nil && flows.Local == 0
}
