// Package top counts flows as they are observed: which conversations, Services and drops are the busiest.
package top

import (
	"maps"
	"sync"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"

	"myelin/hubble/consumer"
	"myelin/hubble/eventtype"
	"myelin/hubble/printer"
)

// maxRows bounds each of the three tables for one interval; what comes beyond is counted as left out.
const maxRows = 10000

// Pair is both ends of a conversation, seen from its client.
type Pair struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Port        uint32 `json:"port,omitempty"` // of the destination; 0: none
	Protocol    string `json:"protocol"`
}

// Dropped is the key by which drops are counted.
type Dropped struct {
	Pair
	Reason    string `json:"reason"`
	Direction string `json:"direction,omitempty"`
	// Rule is the rule that denied, or why no rule allowed; empty if no policy did.
	Rule    string `json:"rule,omitempty"`
	Audited bool   `json:"audited,omitempty"` // only reported, not dropped
}

// Service is a Service with its namespace.
type Service struct {
	Name string `json:"service"`
	// Cluster is the backends' cluster, if it is known.
	Cluster string `json:"cluster,omitempty"`
}

// point is a place where a packet is reported. A packet may be reported at several, so that their counts aren't added.
type point struct {
	node  string
	where flowpb.TraceObservationPoint
	reply bool
}

// count has the sums of reports.
type count struct {
	packets, bytes, begun, drops uint64
	sized                        bool // bytes are known of at least one report
}

func (c *count) add(o count) {
	c.packets, c.bytes, c.begun, c.drops = c.packets+o.packets, c.bytes+o.bytes, c.begun+o.begun, c.drops+o.drops
	c.sized = c.sized || o.sized
}

// counts are the counts of one row, by point.
type counts map[point]*count

// sum adds up both directions. Of each it takes the point with the highest counts.
func (c counts) sum() count {
	var ways [2]count
	for p, n := range c {
		w := &ways[0]
		if p.reply {
			w = &ways[1]
		}
		w.packets, w.bytes = max(w.packets, n.packets), max(w.bytes, n.bytes)
		w.begun, w.drops = max(w.begun, n.begun), max(w.drops, n.drops)
		w.sized = w.sized || n.sized
	}
	ways[0].add(ways[1])
	return ways[0]
}

// slot has the counts between two views.
type slot struct {
	begin    time.Time
	pairs    map[Pair]counts
	services map[Service]counts
	drops    map[Dropped]counts
	events   uint64
	lost     uint64
	leftOut  uint64
}

func newSlot(begin time.Time) *slot {
	return &slot{begin: begin, pairs: map[Pair]counts{}, services: map[Service]counts{}, drops: map[Dropped]counts{}}
}

// Counter counts flows. Its methods may be called concurrently.
type Counter struct {
	window time.Duration

	mu    sync.Mutex
	slots []*slot // the last one is being filled
	away  map[string]string
}

// New returns a counter whose views are of the last window. Flows without TCP are reported every few seconds, so that
// a shorter window shows some of them as idle.
func New(window time.Duration, now time.Time) *Counter {
	return &Counter{window: window, slots: []*slot{newSlot(now)}, away: map[string]string{}}
}

// Add counts a response of an observer.
func (c *Counter) Add(res *observerpb.GetFlowsResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[len(c.slots)-1]
	switch {
	case res.GetFlow() != nil:
		s.events++
		s.flow(res.GetFlow())
	case res.GetLostEvents() != nil:
		s.lost += res.GetLostEvents().GetNumEventsLost()
	case res.GetNodeStatus() != nil:
		c.status(res)
	}
}

// flow counts one report.
func (s *slot) flow(f *flowpb.Flow) {
	one, at := count{packets: 1}, point{f.GetNodeName(), f.GetTraceObservationPoint(), f.GetIsReply().GetValue()}
	pair := pairOf(f)
	switch kind := f.GetEventType().GetType(); {
	case f.GetVerdict() == flowpb.Verdict_DROPPED, f.GetVerdict() == flowpb.Verdict_AUDIT:
		one.drops = 1
		countRow(s, s.drops, droppedOf(f, pair), at, one)
		if f.GetVerdict() == flowpb.Verdict_AUDIT {
			return // its packet is reported where it goes
		}
	case kind == eventtype.Sock && f.GetVerdict() == flowpb.Verdict_TRANSLATED:
		// The packets go to the backend without translation: only that the flow begins is known of the Service.
		countService(s, f, at, count{begun: 1})
		return
	case kind != eventtype.Trace:
		return // a verdict, whose packet is reported apart
	default:
		if p, b, ok := consumer.Counts(consumer.Extension(f)); ok {
			one.packets, one.bytes, one.sized = p, b, true
		}
		if f.GetTraceReason() == flowpb.TraceReason_NEW {
			one.begun = 1
		}
	}
	countRow(s, s.pairs, pair, at, one)
	countService(s, f, at, one)
}

func countService(s *slot, f *flowpb.Flow, at point, one count) {
	service, cluster := f.GetDestinationService(), f.GetDestination().GetClusterName()
	if f.GetIsReply().GetValue() {
		service, cluster = f.GetSourceService(), f.GetSource().GetClusterName()
	}
	if service.GetName() != "" {
		countRow(s, s.services, Service{service.GetNamespace() + "/" + service.GetName(), cluster}, at, one)
	}
}

// countRow adds to a row, which is made unless there are too many.
func countRow[K comparable](s *slot, rows map[K]counts, key K, at point, one count) {
	row := rows[key]
	if row == nil {
		if len(rows) >= maxRows {
			s.leftOut++
			return
		}
		row = counts{}
		rows[key] = row
	}
	if row[at] == nil {
		row[at] = &count{}
	}
	row[at].add(one)
}

// pairOf names the ends, the client first. Ports of clients are left out, so that their connections are one row.
func pairOf(f *flowpb.Flow) Pair {
	from := printer.Name(f.GetSource(), f.GetSourceService(), f.GetSourceNames(), f.GetIP().GetSource())
	to := printer.Name(f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames(),
		f.GetIP().GetDestination())
	sourcePort, port := printer.Ports(f)
	if f.GetIsReply().GetValue() {
		from, to, port = to, from, sourcePort
	}
	if f.GetIP() == nil {
		from, to = f.GetEthernet().GetSource(), f.GetEthernet().GetDestination()
	}
	return Pair{from, to, port, printer.Protocol(f)}
}

func droppedOf(f *flowpb.Flow, pair Pair) Dropped {
	ext := consumer.Extension(f)
	d := Dropped{Pair: pair, Reason: ext["reason"].GetStringValue(), Rule: ext["policy"].GetStringValue(),
		Audited: f.GetVerdict() == flowpb.Verdict_AUDIT}
	if d.Reason == "" {
		d.Reason = printer.Reason(f)
	}
	switch f.GetTrafficDirection() {
	case flowpb.TrafficDirection_INGRESS:
		d.Direction = "ingress"
	case flowpb.TrafficDirection_EGRESS:
		d.Direction = "egress"
	}
	return d
}

// merge adds the rows of all slots up.
func merge[K comparable](slots []*slot, rows func(*slot) map[K]counts) map[K]counts {
	if len(slots) == 1 {
		return rows(slots[0])
	}
	all := map[K]counts{}
	for _, s := range slots {
		for key, row := range rows(s) {
			if all[key] == nil {
				all[key] = counts{}
			}
			for at, n := range row {
				if all[key][at] == nil {
					all[key][at] = &count{}
				}
				all[key][at].add(*n)
			}
		}
	}
	return all
}

func (c *Counter) status(res *observerpb.GetFlowsResponse) {
	away, word := res.GetNodeStatus().GetStateChange(), res.GetNodeStatus().GetMessage()
	for _, name := range res.GetNodeStatus().GetNodeNames() {
		switch away {
		case relaypb.NodeState_NODE_CONNECTED, relaypb.NodeState_NODE_GONE: // of the cluster
			delete(c.away, name)
		case relaypb.NodeState_NODE_ERROR, relaypb.NodeState_NODE_UNAVAILABLE:
			c.away[name] = word
		}
	}
}

// awayNow are the nodes whose flows are missing.
func (c *Counter) awayNow() map[string]string { return maps.Clone(c.away) }
