package agent

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"myelin/agent/feature"
)

// processLists are tables about the agent's process. They exist before it is ready.
func (a *agent) processLists() map[string]feature.List {
	return map[string]feature.List{
		"log": {Header: (*logLine)(nil).TableHeader(), Each: func(yield func(tableRow) bool) error {
			for _, line := range a.recent.Lines() {
				if !yield(&logLine{line}) {
					break
				}
			}
			return nil
		}},
		"metrics": {Header: (*metric)(nil).TableHeader(), Each: a.eachMetric},
		"tables":  {Header: (*tableCount)(nil).TableHeader(), Each: a.eachTable},
	}
}

// logLine is a line of the agent's log, in the format of myelin.logFormat.
type logLine struct {
	Line string `json:"line"`
}

// TableHeader names the columns of TableRow.
func (*logLine) TableHeader() []string { return []string{"Line"} }

// TableRow is the row as text.
func (l *logLine) TableRow() []string { return []string{l.Line} }

// metric is a sample of /metrics.
type metric struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"` // of a histogram or summary: the sum
	Count  *uint64           `json:"count,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*metric) TableHeader() []string { return []string{"Metric", "Labels", "Value"} }

// TableRow is the row as text.
func (m *metric) TableRow() []string {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, name+"="+strconv.Quote(m.Labels[name]))
	}
	value := strconv.FormatFloat(m.Value, 'f', -1, 64)
	if m.Count != nil {
		value = "count " + strconv.FormatUint(*m.Count, 10) + ", sum " + value
	}
	return []string{m.Name, strings.Join(labels, " "), value}
}

// eachMetric calls yield for what /metrics has, by name.
func (a *agent) eachMetric(yield func(tableRow) bool) error {
	families, err := a.metrics.registry.Gather()
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			if m := newMetric(family.GetName(), sample); math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
				continue // JSON has no such number
			} else if !yield(m) {
				return nil
			}
		}
	}
	return err
}

func newMetric(name string, sample *dto.Metric) *metric {
	m := &metric{Name: name, Labels: map[string]string{}}
	for _, l := range sample.GetLabel() {
		m.Labels[l.GetName()] = l.GetValue()
	}
	switch {
	case sample.Gauge != nil:
		m.Value = sample.GetGauge().GetValue()
	case sample.Counter != nil:
		m.Value = sample.GetCounter().GetValue()
	case sample.Histogram != nil:
		count := sample.GetHistogram().GetSampleCount()
		m.Value, m.Count = sample.GetHistogram().GetSampleSum(), &count
	case sample.Summary != nil:
		count := sample.GetSummary().GetSampleCount()
		m.Value, m.Count = sample.GetSummary().GetSampleSum(), &count
	case sample.Untyped != nil:
		m.Value = sample.GetUntyped().GetValue()
	}
	return m
}

// commands are those that show the process and its tables.
func (*agent) commands() []feature.Command {
	return []feature.Command{
		{Name: "metrics", Short: "Inspect the agent's metrics", Views: []feature.View{{Name: "list",
			Short: "List the metrics that /metrics exposes", Table: "metrics"}}},
		{Name: "table", Short: "Inspect the tables of the agent", Views: []feature.View{
			{Name: "list", Short: "List the tables", Table: "tables"},
			{Name: "show", Short: "Show the rows of a table", Table: "", By: "TABLE", Prefix: true},
		}},
	}
}
