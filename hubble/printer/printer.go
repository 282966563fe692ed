// Package printer writes flows as text or JSON, in the forms that Hubble's
// command line has.
package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Forms of output.
const (
	Compact = "compact" // a line for each flow
	Dict    = "dict"    // a line for each field
	JSON    = "json"    // an object a line; jsonpb is the same
	JSONPB  = "jsonpb"
	Table   = "table" // columns, written by Close; tab is the same
	Tab     = "tab"
)

// Forms are all values of Options.Form.
func Forms() []string { return []string{Compact, Dict, JSON, JSONPB, Table, Tab} }

// Options say how to print. The zero value prints compact lines with addresses.
type Options struct {
	Form       string // one of Forms; empty: Compact
	TimeLayout string // as package time has them
	NodeName   bool   // with the node that reports
	Names      bool   // names in the place of addresses
	Policies   bool   // with the policies that decided
	Color      bool   // not of tables and JSON
	Debug      bool   // also what nodes come and go
	Silent     bool   // nothing on Err
}

// Printer prints responses. Close must be called in the end.
type Printer struct {
	Options
	out, err io.Writer
	table    *tabwriter.Writer
	lines    int
}

// New returns a printer of flows to out, and of the state of nodes to err.
func New(o Options, out, err io.Writer) *Printer {
	p := &Printer{Options: o, out: out, err: err}
	if p.Form == Tab || p.Form == Table {
		p.Form, p.Color = Table, false
		p.table = tabwriter.NewWriter(out, 2, 0, 3, ' ', 0)
	}
	if p.Silent {
		p.err = io.Discard
	}
	return p
}

// Close writes what is kept: a table.
func (p *Printer) Close() error {
	if p.table == nil {
		return nil
	}
	return p.table.Flush()
}

// Print prints a response. It returns errors of the writers.
func (p *Printer) Print(res *observerpb.GetFlowsResponse) error {
	if p.Form == JSON || p.Form == JSONPB {
		w := p.out
		if res.GetNodeStatus() != nil {
			if !p.tells(res.GetNodeStatus()) {
				return nil
			}
			w = p.err
		}
		return json.NewEncoder(w).Encode(res)
	}
	switch {
	case res.GetFlow() != nil:
		return p.flow(res.GetFlow())
	case res.GetLostEvents() != nil:
		return p.lost(res)
	case res.GetNodeStatus() != nil:
		return p.status(res)
	}
	return nil
}

// field is a column of a table, and a line of a dict.
type field struct{ name, value string }

func (p *Printer) flow(f *flowpb.Flow) error {
	source, target := p.ends(f)
	at, kind, verdict, summary := p.time(f.GetTime()), Type(f), p.verdict(f), Summary(f)
	if p.Form == Dict || p.Form == Table {
		return p.fields(at, f.GetNodeName(), []field{{"SOURCE", source}, {"DESTINATION", target}, {"TYPE", kind},
			{"VERDICT", verdict}, {"SUMMARY", summary}})
	}
	from, to := p.identity(f.GetSource()), p.identity(f.GetDestination())
	arrow := "->"
	switch {
	case f.GetIsReply() == nil:
		arrow = "<>"
	case f.GetIsReply().GetValue(): // the side that began the flow stands on the left
		arrow, source, target, from, to = "<-", target, source, to, from
	}
	node := ""
	if p.NodeName {
		node = " [" + Printable(f.GetNodeName()) + "]"
	}
	_, err := fmt.Fprintf(p.out, "%s%s: %s %s %s %s %s %s %s (%s)\n", at, node, source, from, arrow, target, to, kind,
		verdict, summary)
	return err
}

// fields prints an entry of a dict or a line of a table.
func (p *Printer) fields(at, node string, all []field) error {
	head := []field{{"TIMESTAMP", at}}
	if p.NodeName {
		head = append(head, field{"NODE", Printable(node)})
	}
	all = append(head, all...)
	var b strings.Builder
	w := p.out
	if p.Form == Dict {
		if p.lines > 0 {
			b.WriteString("------------\n")
		}
		for _, f := range all {
			fmt.Fprintf(&b, "%11s: %s\n", f.name, f.value)
		}
	} else {
		w = p.table
		if p.lines == 0 {
			b.WriteString(row(all, func(f field) string { return f.name }))
		}
		b.WriteString(row(all, func(f field) string { return f.value }))
	}
	p.lines++
	_, err := io.WriteString(w, b.String())
	return err
}

func row(all []field, cell func(field) string) string {
	var cells []string
	for _, f := range all {
		cells = append(cells, cell(f))
	}
	return strings.Join(cells, "\t") + "\n"
}

func (p *Printer) lost(res *observerpb.GetFlowsResponse) error {
	l := res.GetLostEvents()
	cpu, span := "", ""
	if l.GetCpu() != nil {
		cpu = fmt.Sprintf("CPU(%d) ", l.GetCpu().GetValue())
	}
	if l.GetFirst() != nil && l.GetLast() != nil {
		span = fmt.Sprintf(" (first: %s, last: %s)", p.time(l.GetFirst()), p.time(l.GetLast()))
	}
	summary := fmt.Sprintf("%s%d%s", cpu, l.GetNumEventsLost(), span)
	source := l.GetSource().String()
	if p.Form == Dict || p.Form == Table {
		return p.fields(p.time(res.GetTime()), res.GetNodeName(), []field{{"SOURCE", source}, {"DESTINATION", "-"},
			{"TYPE", "EVENTS LOST"}, {"VERDICT", "-"}, {"SUMMARY", summary}})
	}
	node := ""
	if p.NodeName {
		node = " [" + Printable(res.GetNodeName()) + "]"
	}
	_, err := fmt.Fprintf(p.out, "%s%s: EVENTS LOST: %s %s\n", p.time(res.GetTime()), node, source, summary)
	return err
}

// tells reports whether a change of nodes is printed: that nodes are there is no news.
func (p *Printer) tells(s *relaypb.NodeStatusEvent) bool {
	return p.Debug || s.GetStateChange() == relaypb.NodeState_NODE_ERROR ||
		s.GetStateChange() == relaypb.NodeState_NODE_UNAVAILABLE
}

func (p *Printer) status(res *observerpb.GetFlowsResponse) error {
	s := res.GetNodeStatus()
	if !p.tells(s) {
		return nil
	}
	what := map[relaypb.NodeState]string{relaypb.NodeState_NODE_CONNECTED: "receiving flows of",
		relaypb.NodeState_NODE_UNAVAILABLE: "no flows of, unavailable:", relaypb.NodeState_NODE_GONE: "removed:",
		relaypb.NodeState_NODE_ERROR: fmt.Sprintf("error %q of", s.GetMessage())}[s.GetStateChange()]
	_, err := fmt.Fprintf(p.err, "%s [%s]: %s %s\n", p.time(res.GetTime()), Printable(res.GetNodeName()), what,
		Printable(strings.Join(s.GetNodeNames(), ", ")))
	return err
}

func (p *Printer) time(t *timestamppb.Timestamp) string {
	if !t.IsValid() {
		return "N/A"
	}
	return t.AsTime().Local().Format(p.TimeLayout)
}

// Printable replaces what a terminal could take for a command by question marks.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
