// Package tracking is the feature of conntrack entries in the agent: their
// lists, the collection of expired ones, and how full the tables are.
package tracking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/event"
	"myelin/flow"
)

// Tracking is the feature.
type Tracking struct {
	*feature.Node
	// Names names addresses and links in lists.
	Names func() event.Names
	// Publish takes the event of a flow that no packet ended.
	Publish func(*event.Raw)
	// Pod is "namespace/name" of the pod in a slot, or the slot's number.
	Pod func(slot uint16) string
	// NATEntries are the shares of the table of Services' NAT entries; nil where there is none.
	NATEntries func() *flow.Shares
	// Growth is how many entries the tables may grow to, 0 if they do not grow, and why they could not be made larger.
	Growth func() (limit int, stuck string)

	collector *flow.Collector
	lends     atomic.Bool
}

// Feature returns the parts. Its Start needs the datapath.
func (t *Tracking) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "flows", Start: t.start, Stop: t.stop, Lists: t.lists, Metrics: t.metrics, Commands: commands(),
		Status: func() []feature.Status { return []feature.Status{t.status()} },
	}
}

func (t *Tracking) start(context.Context) error {
	t.collector = flow.NewCollector(t.Datapath, t.Log)
	if t.Config.Events.Trace {
		t.collector.Ended = t.Publish
	}
	index := &flow.PortIndex{Datapath: t.Datapath, Log: t.Log}
	t.Go("flows", t.collector.Run)
	t.Go("port index", index.Run)
	return nil
}

// Lend has Stop lend room in the tables that grow (flow.Shares.Lend): the datapath is reloaded with larger ones.
func (t *Tracking) Lend() { t.lends.Store(true) }

// Expect notes how long a reload with larger tables takes (flow.Shares.Expect).
func (t *Tracking) Expect(reload time.Duration) {
	t.collector.Expect(reload)
	if nat := t.NATEntries(); nat != nil {
		nat.Expect(reload)
	}
}

func (t *Tracking) stop() error {
	if t.collector == nil || !t.lends.Load() {
		return nil
	}
	err := t.collector.Lend()
	if nat := t.NATEntries(); nat != nil {
		err = errors.Join(err, nat.Lend())
	}
	return err
}

func (t *Tracking) lists() map[string]feature.List {
	return map[string]feature.List{
		"flows": {Header: (*flow.Flow)(nil).TableHeader(), Each: t.eachFlow},
		"paths": {Header: (*flow.Path)(nil).TableHeader(), Each: t.eachPath},
	}
}

func (t *Tracking) eachFlow(yield func(feature.Row) bool) error {
	clock, err := t.Clock()
	if err != nil {
		return err
	}
	return flow.List(t.Datapath, t.Names(), clock, func(f *flow.Flow) bool { return yield(f) })
}

func (t *Tracking) eachPath(yield func(feature.Row) bool) error {
	clock, err := t.Clock()
	if err != nil {
		return err
	}
	return flow.Paths(t.Datapath, t.Names(), clock, func(p *flow.Path) bool { return yield(p) })
}

// Clock is the datapath's.
func (t *Tracking) Clock() (flow.Clock, error) {
	settings, err := t.Datapath.Settings()
	if err != nil {
		return flow.Clock{}, err
	}
	return flow.ReadClock(settings.Hz)
}

// tableUsage is how full a conntrack table is, and which pod has the most of it.
type tableUsage struct {
	Name string
	flow.Usage
	// Pod is "namespace/name" of the pod with the most entries, or the number of
	// an endpoint that is gone; empty if no pod has any.
	Pod string
	// Evicts: what is more than an endpoint's share takes the place of its own older entries, and nothing is dropped.
	Evicts bool
	// Limit is what the table may grow to, in entries; 0: it does not grow.
	Limit int
}

// usage is that of the conntrack tables which this configuration has, and of the table of fragments.
func (t *Tracking) usage() (list []tableUsage) {
	limit, _ := t.Growth()
	add := func(table string, evicts bool, read func() (flow.Usage, error)) {
		u, err := read()
		if err != nil {
			t.Log.Warn("usage of a conntrack table is not known", "table", table, "error", err)
		} else if u.Max > 1 {
			row := tableUsage{Name: table, Usage: u, Pod: t.Pod(u.Slot), Evicts: evicts}
			if !evicts {
				row.Limit = limit
			}
			list = append(list, row)
		}
	}
	for _, table := range t.growing() {
		add(table.name, false, table.read)
	}
	add("fragments", true, func() (flow.Usage, error) { return fragments(t.Datapath) })
	return list
}

// Tables is the room in the tables of conntrack and NAT entries, by name. One that cannot be read is missing.
func (t *Tracking) Tables() map[string]flow.Usage {
	tables := map[string]flow.Usage{}
	for _, table := range t.growing() {
		if u, err := table.room(); err == nil {
			tables[table.name] = u
		}
	}
	return tables
}

// readable is a table whose usage can be read.
type readable struct {
	name       string
	read, room func() (flow.Usage, error)
}

// growing are the tables that may grow and that this configuration has.
func (t *Tracking) growing() []readable {
	list := []readable{{"flows", t.collector.Usage, t.collector.Room}}
	if nat := t.NATEntries(); nat != nil {
		list = append(list, readable{"nat_entries", nat.Usage, nat.Room})
	}
	return list
}

func (t *Tracking) metrics(s feature.Sink) {
	s.Counter("myelin_flows_expired_total", "Flows whose row was deleted since no packet was seen for too long.",
		float64(t.collector.Expired()), nil)
	for _, u := range t.usage() {
		labels := prometheus.Labels{"table": u.Name}
		s.Gauge("myelin_conntrack_entries", "Entries of a conntrack table, as the agent counted last.",
			float64(u.Entries), labels)
		s.Gauge("myelin_conntrack_max_entries", "Room in a conntrack table.", float64(u.Max), labels)
		if u.Limit > 0 {
			s.Gauge("myelin_conntrack_demand_entries", "Entries that a conntrack table must have room for.",
				float64(u.Demand), labels)
		}
		if u.Limit > u.Max {
			s.Gauge("myelin_conntrack_limit_entries", "What a conntrack table grows to if flows need it.",
				float64(u.Limit), labels)
		}
		if u.Most > 0 {
			labels = prometheus.Labels{"table": u.Name, "pod": u.Pod}
			s.Gauge("myelin_conntrack_top_entries", "Entries of the pod that has the most of a conntrack table.",
				float64(u.Most), labels)
		}
	}
}

func (t *Tracking) status() feature.Status {
	s := statusOf(t.usage())
	if _, stuck := t.Growth(); stuck != "" {
		s.FallBack("tables do not grow: " + stuck)
	}
	return s
}

// statusOf is the line of `myelin status` that names the pod which uses
// the most entries of each table.
func statusOf(list []tableUsage) feature.Status {
	x := feature.Status{
		Name: "Conntrack", State: feature.Off, Chosen: "no table", Wanted: "bpf.ctTcpMax, bpf.ctAnyMax, bpf.lbMapMax",
	}
	var tables []string
	for _, t := range list {
		x.State = feature.OK
		text := fmt.Sprintf("%s: %d of %d entries", t.Name, t.Entries, t.Max)
		if t.Limit > t.Max {
			text += fmt.Sprintf(" (grows to %d)", t.Limit)
		}
		if t.Most > 0 {
			text += fmt.Sprintf(", %s has the most: %d", t.Pod, t.Most)
		}
		tables = append(tables, text)
		if t.Limited() && !t.Evicts {
			x.FallBack(fmt.Sprintf("%s has its share of %s: as many entries as are left for others", t.Pod, t.Name))
			x.Cost = "its new flows are dropped: DROP_FLOW_LIMIT"
		}
	}
	if len(tables) > 0 {
		x.Chosen = strings.Join(tables, "; ")
	} else {
		x.Why = "no feature needs one"
	}
	return x
}

// commands are those that show flows.
func commands() []feature.Command {
	return []feature.Command{
		{Name: "flow", Short: "List conntrack entries", Views: []feature.View{
			{Name: "list", Short: "List conntrack entries", Table: "flows"},
		}, Alias: "flows"},
	}
}
