package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Order is the sort order of a view.
type Order string

// Orders. Rows that have the same come by name.
const (
	ByPackets Order = "packets"
	ByBytes   Order = "bytes"
	ByNew     Order = "new"
	ByDrops   Order = "drops"
)

// Orders are all there are.
func Orders() []Order { return []Order{ByPackets, ByBytes, ByNew, ByDrops} }

// Rate has the averages of a row, per second. Of TCP only packets with SYN, FIN or RST are reported, so that Bytes
// is nil.
type Rate struct {
	Packets  float64  `json:"packetsPerSecond"`
	Bytes    *float64 `json:"bytesPerSecond,omitempty"`
	NewFlows float64  `json:"newFlowsPerSecond"`
	Drops    float64  `json:"dropsPerSecond"`
}

// FlowRow is a conversation.
type FlowRow struct {
	Pair
	Rate
}

// ServiceRow is a Service.
type ServiceRow struct {
	Service
	Rate
}

// DropRow is why packets of a conversation were dropped.
type DropRow struct {
	Dropped
	Packets   uint64  `json:"packets"` // in the window
	PerSecond float64 `json:"packetsPerSecond"`
}

// View has the counts of the last window, the busiest rows first.
type View struct {
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"` // that the view is the mean of
	// Events are the reports that were counted, Lost those that were not delivered.
	Events   uint64       `json:"events"`
	Lost     uint64       `json:"lostEvents"`
	LeftOut  uint64       `json:"leftOut,omitempty"` // reports beyond the rows that are kept
	Total    Rate         `json:"total"`
	Flows    []FlowRow    `json:"flows"`
	Services []ServiceRow `json:"services"`
	Drops    []DropRow    `json:"drops"`
	// Away are nodes whose flows are missing, and why.
	Away map[string]string `json:"away,omitempty"`
}

// View returns what was counted until now, and begins a new interval. limit bounds the rows of each table; 0: none.
func (c *Counter) View(now time.Time, by Order, limit int) *View {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.slots) > 1 && now.Sub(c.slots[0].begin) > c.window {
		c.slots = c.slots[1:]
	}
	v := &View{Time: now, Seconds: max(now.Sub(c.slots[0].begin).Seconds(), 0.001), Away: c.awayNow(),
		Flows: []FlowRow{}, Services: []ServiceRow{}, Drops: []DropRow{}}
	for _, s := range c.slots {
		v.Events, v.Lost, v.LeftOut = v.Events+s.events, v.Lost+s.lost, v.LeftOut+s.leftOut
	}
	v.flows(c.slots, by)
	for key, row := range merge(c.slots, func(s *slot) map[Service]counts { return s.services }) {
		v.Services = append(v.Services, ServiceRow{key, v.rate(row.sum())})
	}
	slices.SortFunc(v.Services, func(a, b ServiceRow) int {
		return cmp.Or(before(&a.Rate, &b.Rate, by), strings.Compare(a.Name, b.Name),
			strings.Compare(a.Cluster, b.Cluster))
	})
	for key, row := range merge(c.slots, func(s *slot) map[Dropped]counts { return s.drops }) {
		n := row.sum().drops
		v.Drops = append(v.Drops, DropRow{key, n, float64(n) / v.Seconds})
	}
	slices.SortFunc(v.Drops, func(a, b DropRow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), comparePairs(a.Pair, b.Pair),
			strings.Compare(a.Reason+a.Rule+a.Direction, b.Reason+b.Rule+b.Direction))
	})
	if limit > 0 {
		v.Flows, v.Services = v.Flows[:min(limit, len(v.Flows))], v.Services[:min(limit, len(v.Services))]
		v.Drops = v.Drops[:min(limit, len(v.Drops))]
	}
	c.slots = append(c.slots, newSlot(now))
	return v
}

func (v *View) flows(slots []*slot, by Order) {
	var total count
	for key, row := range merge(slots, func(s *slot) map[Pair]counts { return s.pairs }) {
		n := row.sum()
		total.add(n)
		v.Flows = append(v.Flows, FlowRow{key, v.rate(n)})
	}
	v.Total = v.rate(total)
	slices.SortFunc(v.Flows, func(a, b FlowRow) int {
		return cmp.Or(before(&a.Rate, &b.Rate, by), comparePairs(a.Pair, b.Pair))
	})
}

func (v *View) rate(n count) Rate {
	r := Rate{Packets: float64(n.packets) / v.Seconds, NewFlows: float64(n.begun) / v.Seconds,
		Drops: float64(n.drops) / v.Seconds}
	if n.sized {
		b := float64(n.bytes) / v.Seconds
		r.Bytes = &b
	}
	return r
}

// before compares two rates, the larger first.
func before(a, b *Rate, by Order) int {
	bytes := func(r *Rate) float64 {
		if r.Bytes == nil {
			return -1
		}
		return *r.Bytes
	}
	packets := cmp.Compare(b.Packets, a.Packets)
	switch by {
	case ByBytes:
		return cmp.Or(cmp.Compare(bytes(b), bytes(a)), packets)
	case ByNew:
		return cmp.Or(cmp.Compare(b.NewFlows, a.NewFlows), packets)
	case ByDrops:
		return cmp.Or(cmp.Compare(b.Drops, a.Drops), packets)
	}
	return packets
}

func comparePairs(a, b Pair) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Destination, b.Destination),
		cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
}
