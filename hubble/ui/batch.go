package ui

import (
	"cmp"
	"slices"
	"sort"
	"sync"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/proto"
)

// Bounds of what a stream keeps for its browser.
const (
	maxRows  = 10000 // of a batch, and half of those that wait: two seconds of 5,000 flows a second
	maxEdges = 5000  // that wait for it
	maxKept  = 20000 // flows whose details it can ask for
	// denied flows are read later than others, when thousands have come since
	maxKeptDenied = 2000
)

// batch has the events since the previous batch.
type batch struct {
	At    int64   `json:"at"` // milliseconds since 1970
	Rows  []row   `json:"rows,omitempty"`
	Edges []*edge `json:"edges,omitempty"`
	// Flows are all since the last batch: rows, and Skipped, for which the browser was too slow. Edges count both.
	Flows   uint64 `json:"flows,omitempty"`
	Skipped uint64 `json:"skipped,omitempty"`
	// EdgesLeftOut are flows of edges that had no room.
	EdgesLeftOut uint64 `json:"edgesLeftOut,omitempty"`
	// Lost are events that nodes could not report.
	Lost  []lost      `json:"lost,omitempty"`
	Nodes []nodeState `json:"nodes,omitempty"`
	// Error is why the stream ends.
	Error string `json:"error,omitempty"`
}

type lost struct {
	Node   string `json:"node"`
	Source string `json:"source"`
	Count  uint64 `json:"count"`
}

type nodeState struct {
	State   string   `json:"state"`
	Names   []string `json:"names"`
	Message string   `json:"message,omitempty"`
}

// collector gathers what an observer sends until the browser takes it. It never waits for the browser, and counts what
// that misses.
type collector struct {
	text  string // that rows must contain, in lower case
	since time.Time
	// dropped has something after a drop.
	dropped chan struct{}

	mu    sync.Mutex
	next  batch
	edges map[edgeKey]*edge
	seq   uint64
	// the last flows, and the last of those that were denied
	kept, denied keeper
}

func newCollector(text string, since time.Time) *collector {
	return &collector{text: text, since: since, dropped: make(chan struct{}, 1), edges: map[edgeKey]*edge{},
		kept: keeper{size: maxKept}, denied: keeper{size: maxKeptDenied}}
}

// keeper is a ring of flows as protobuf, by their numbers.
type keeper struct {
	size, next int
	flows      []numbered
}

// numbered is a flow by its number.
type numbered struct {
	seq  uint64
	data []byte
}

func (k *keeper) add(f numbered) {
	if len(k.flows) < k.size {
		k.flows = append(k.flows, f)
		return
	}
	k.flows[k.next] = f
	k.next = (k.next + 1) % k.size
}

func (k *keeper) find(seq uint64) []byte {
	n := len(k.flows)
	at := func(i int) *numbered { return &k.flows[(k.next+i)%n] }
	if i := sort.Search(n, func(i int) bool { return at(i).seq >= seq }); i < n && at(i).seq == seq {
		return at(i).data
	}
	return nil
}

// add takes a response of the observer.
func (c *collector) add(res *observerpb.GetFlowsResponse) {
	switch {
	case res.GetFlow() != nil:
		c.flow(res.GetFlow())
	case res.GetLostEvents() != nil:
		l := res.GetLostEvents()
		c.lost(lost{res.GetNodeName(), l.GetSource().String(), l.GetNumEventsLost()})
	case res.GetNodeStatus() != nil:
		s := res.GetNodeStatus()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.next.Nodes = append(c.next.Nodes, nodeState{s.GetStateChange().String(), s.GetNodeNames(), s.GetMessage()})
		if n := len(c.next.Nodes); n > maxStates {
			c.next.Nodes = slices.Delete(c.next.Nodes, 0, n-maxStates)
		}
	}
}

// maxStates bounds the changes of nodes in a batch.
const maxStates = 100

func (c *collector) lost(l lost) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.next.Lost, func(o lost) bool { return o.Node == l.Node && o.Source == l.Source })
	if i < 0 && len(c.next.Lost) < maxStates {
		c.next.Lost = append(c.next.Lost, l)
	} else {
		c.next.Lost[max(i, 0)].Count += l.Count
	}
}

func (c *collector) flow(f *flowpb.Flow) {
	r := newRow(f, 0)
	if c.text != "" && !r.contains(c.text) {
		return
	}
	data, err := proto.Marshal(f)
	if err != nil { // text that isn't UTF-8: there are no details of it
		data = nil
	}
	keys := edges(f)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.seq = c.seq
	c.kept.add(numbered{c.seq, data})
	if denied(f) {
		c.denied.add(numbered{c.seq, data})
		select {
		case c.dropped <- struct{}{}:
		default: // there is one already
		}
	}
	c.seq++
	c.next.Flows++
	if len(c.next.Rows) >= 2*maxRows { // half of it at once: one copy for many rows
		c.next.Rows = append(c.next.Rows[:0], c.next.Rows[maxRows:]...)
		c.next.Skipped += maxRows
	}
	c.next.Rows = append(c.next.Rows, r)
	past := f.GetTime().AsTime().Before(c.since)
	for _, key := range keys {
		e := c.edges[key]
		if e == nil && len(c.edges) >= maxEdges {
			c.next.EdgesLeftOut++
			continue
		}
		if e == nil {
			e = &edge{From: key.from, To: key.to, Protocol: key.protocol, Port: key.port}
			c.edges[key] = e
		}
		e.add(f, past, r.rule)
	}
}

// take returns what was gathered, and begins anew.
func (c *collector) take(now time.Time) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.next
	if over := len(b.Rows) - maxRows; over > 0 {
		b.Rows = b.Rows[over:]
		b.Skipped += uint64(over)
	}
	for _, e := range c.edges {
		b.Edges = append(b.Edges, e)
	}
	slices.SortFunc(b.Edges, func(a, b *edge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Port, b.Port))
	})
	b.At = now.UnixMilli()
	c.next, c.edges = batch{}, map[edgeKey]*edge{}
	return &b
}

// find returns a flow by its number; false if it is not kept any more.
func (c *collector) find(seq uint64) (*flowpb.Flow, bool) {
	c.mu.Lock()
	data := c.kept.find(seq)
	if data == nil {
		data = c.denied.find(seq)
	}
	c.mu.Unlock()
	f := &flowpb.Flow{}
	return f, data != nil && proto.Unmarshal(data, f) == nil
}
