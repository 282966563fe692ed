package stats

import (
	"cmp"
	"slices"
	"time"
)

// View is what Services count in a second.
type View struct {
	Time     time.Time      `json:"time"`
	Seconds  float64        `json:"seconds"` // that the rates are the mean of
	Total    Rate           `json:"total"`
	Services []*ServiceRate `json:"services"`
}

// ServiceRate is what a Service counts in a second. That of backends without counters of their own has no name.
type ServiceRate struct {
	Service string `json:"service"`
	Rate
	Backends []*BackendRate `json:"backends"`
}

// BackendRate is what a Service's backend counts in a second.
type BackendRate struct {
	Backend string `json:"backend"`
	Node    string `json:"node,omitempty"`
	State   string `json:"state,omitempty"`
	Rate
}

// Rate is what is counted in a second, and the number of flows.
type Rate struct {
	Requests TrafficRate `json:"requests"`
	Replies  TrafficRate `json:"replies"`
	NewFlows float64     `json:"newFlows"`
	Flows    *int        `json:"flows,omitempty"` // nil: unknown
}

// TrafficRate is a direction of flows, in a second.
type TrafficRate struct {
	Packets float64 `json:"packets"`
	Bytes   float64 `json:"bytes"`
}

// Idle reports whether nothing is counted and there is no flow.
func (r *Rate) Idle() bool {
	return r.Requests == (TrafficRate{}) && r.Replies == (TrafficRate{}) && r.NewFlows == 0 &&
		(r.Flows == nil || *r.Flows == 0)
}

func (r *Rate) add(o *Rate) {
	r.Requests.Packets += o.Requests.Packets
	r.Requests.Bytes += o.Requests.Bytes
	r.Replies.Packets += o.Replies.Packets
	r.Replies.Bytes += o.Replies.Bytes
	r.NewFlows += o.NewFlows
	if o.Flows != nil {
		sum := *o.Flows
		if r.Flows != nil {
			sum += *r.Flows
		}
		r.Flows = &sum
	}
}

// Order is what Services are sorted by.
type Order string

// The orders, of which each begins with the largest rate.
const (
	ByPackets Order = "packets"
	ByBytes   Order = "bytes"
	ByFlows   Order = "flows" // new ones
)

func (o Order) of(r *Rate) float64 {
	switch o {
	case ByBytes:
		return r.Requests.Bytes + r.Replies.Bytes
	case ByFlows:
		return r.NewFlows
	}
	return r.Requests.Packets + r.Replies.Packets
}

// Rates are how fast the counters of entries have grown since they were read before.
func Rates(before, now []*Entry, at time.Time, passed time.Duration, by Order) *View {
	type key struct {
		id      uint32
		backend string
	}
	last := map[key]*Entry{}
	for _, e := range before {
		last[key{e.ID, e.Backend}] = e
	}
	v := &View{Time: at, Seconds: passed.Seconds(), Services: []*ServiceRate{}}
	services := map[uint32]*ServiceRate{}
	for _, e := range now {
		old := last[key{e.ID, e.Backend}]
		if old == nil {
			old = &Entry{} // it began to count since then
		}
		s := services[e.ID]
		if s == nil {
			s = &ServiceRate{Service: e.Service, Backends: []*BackendRate{}}
			services[e.ID], v.Services = s, append(v.Services, s)
		}
		rate := old.rate(e, v.Seconds)
		if e.Backend != "" {
			s.Backends = append(s.Backends, &BackendRate{Backend: e.Backend, Node: e.Node, State: e.State, Rate: rate})
		}
		s.add(&rate)
		v.Total.add(&rate)
	}
	v.sort(by)
	return v
}

// rate is how fast the counters have grown to those of now.
func (e *Entry) rate(now *Entry, seconds float64) Rate {
	each := func(old, new uint64) float64 {
		if new < old { // the counter began anew
			old = 0
		}
		if seconds <= 0 {
			return 0
		}
		return float64(new-old) / seconds
	}
	traffic := func(old, new Traffic) TrafficRate {
		return TrafficRate{each(old.Packets, new.Packets), each(old.Bytes, new.Bytes)}
	}
	return Rate{traffic(e.Requests, now.Requests), traffic(e.Replies, now.Replies), each(e.NewFlows, now.NewFlows),
		now.Flows}
}

func (v *View) sort(by Order) {
	slices.SortFunc(v.Services, func(a, b *ServiceRate) int {
		return cmp.Or(cmp.Compare(by.of(&b.Rate), by.of(&a.Rate)), cmp.Compare(a.Service, b.Service))
	})
	for _, s := range v.Services {
		slices.SortFunc(s.Backends, func(a, b *BackendRate) int {
			return cmp.Or(cmp.Compare(by.of(&b.Rate), by.of(&a.Rate)), cmp.Compare(a.Backend, b.Backend))
		})
	}
}
