package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
	"myelin/drop"
	"myelin/hubble/consumer"
	"myelin/hubble/eventtype"
	"myelin/hubble/printer"
	"myelin/hubble/query"
	"myelin/hubble/record"
	"myelin/policy/explain"
)

// droppedFlow is a flow that was dropped, and why.
type droppedFlow struct {
	Time        time.Time  `json:"time"` // of the last packet
	Node        string     `json:"node"`
	Source      droppedEnd `json:"source"`
	Destination droppedEnd `json:"destination"`
	Protocol    string     `json:"protocol"`
	Summary     string     `json:"summary"`
	Packets     int        `json:"packets"` // that were reported, from any port of the source
	Verdict     string     `json:"verdict"`
	Reason      string     `json:"reason"`
	What        string     `json:"what,omitempty"`
	Do          string     `json:"do,omitempty"`
	Hook        string     `json:"hook,omitempty"`
	Direction   string     `json:"direction,omitempty"`
	// Rule is the rule that denied with its place, or which policies isolate where none allowed; Policies are the
	// objects.
	Rule     string   `json:"rule,omitempty"`
	Policies []string `json:"policies,omitempty"`
	// Now is the current verdict of policies, and Allow the changes that would allow the flow, as in policy trace.
	Now   string   `json:"now,omitempty"`
	Allow []string `json:"allow,omitempty"`
	Note  string   `json:"note,omitempty"` // why policies could not be asked

	name string // of the drop reason
}

// droppedEnd is an end of a flow.
type droppedEnd struct {
	Name     string   `json:"name"`
	Address  string   `json:"address,omitempty"`
	Port     uint32   `json:"port,omitempty"`
	Service  string   `json:"service,omitempty"`
	Identity uint32   `json:"identity"`
	Labels   []string `json:"labels,omitempty"`
}

// explainFlags are the flags of drops --explain.
type explainFlags struct {
	observerFlags
	query.Range
	filters query.Filters
	on      bool
}

func (f *explainFlags) add(cmd *cobra.Command) {
	f.observerFlags.add(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.on, "explain", "e", false, "explain dropped flows one by one; the flags below are for it")
	flags.BoolVar(&f.Follow, "follow", false, "go on with drops as they happen")
	flags.Uint64Var(&f.Last, "last", 0, "the last N dropped packets (default all that are kept)")
	flags.StringVar(&f.Since, "since", "", "drops since how long ago (3s, 1h30m) or a time (2006-01-02T15:04:05Z)")
	flags.StringVar(&f.Until, "until", "", "drops until then")
	filterFlags(cmd, &f.filters)
}

// explaining explains drops. What it has explained isn't asked again.
type explaining struct {
	*dropsFlags
	agent   apiv1.AgentClient // nil: not asked
	reasons *drop.Names
	answers map[string]*explain.Trace
	seen    map[string]*droppedFlow
	order   []*droppedFlow
	stderr  io.Writer
	// verdicts: filters select verdicts of policies and no drops. Otherwise the drop stands for its verdict.
	verdicts bool
}

func (f *dropsFlags) explainAll(cmd *cobra.Command) error {
	if f.watch || f.all {
		return fmt.Errorf("--explain shows dropped flows: --follow instead of --watch, and no --all")
	}
	allow, deny, err := f.why.filters.Lists()
	if err != nil {
		return err
	}
	r := f.why.Range
	counters := len(allow)+len(deny) == 0 && r.Last == 0 && r.Since == "" && r.Until == "" && f.why.server == ""
	if err := f.why.filters.Add("verdict", flowpb.Verdict_DROPPED.String()); err != nil {
		return err
	}
	r.All = r.Last == 0 && r.Since == "" && r.Until == "" && !r.Follow
	req, err := r.Request(&f.why.filters, time.Now())
	if err != nil {
		return err
	}
	f.why.socket = f.socket
	e := &explaining{dropsFlags: f, reasons: drop.NewNames(), answers: map[string]*explain.Trace{},
		seen: map[string]*droppedFlow{}, stderr: cmd.ErrOrStderr(), verdicts: onlyVerdicts(allow)}
	client, done, err := dial(f.socket)
	if err != nil {
		return err
	}
	defer done()
	e.agent = client
	ctx, stop := untilSignal(cmd)
	defer stop()
	w := cmd.OutOrStdout()
	take := func(res *observerpb.GetFlowsResponse) error { return e.take(ctx, w, res) }
	if err := f.why.each(ctx, req, take); err != nil {
		if !counters || r.Follow || len(e.order) > 0 {
			return err
		}
		fmt.Fprintf(e.stderr, "without flows: %v\n", err)
	}
	if r.Follow {
		return nil
	}
	return e.finish(ctx, w, counters)
}

// take explains a drop at once if it follows, and else counts it.
func (e *explaining) take(ctx context.Context, w io.Writer, res *observerpb.GetFlowsResponse) error {
	if gap := record.Gap(res); gap != "" {
		fmt.Fprintln(e.stderr, "missing: "+printer.Printable(gap))
	}
	if f := res.GetFlow(); f == nil || f.GetEventType().GetType() == eventtype.PolicyVerdict && !e.verdicts {
		return nil
	}
	d := e.drop(res.GetFlow())
	key := fmt.Sprint(d.Node, d.Source.Address, d.Destination.Address, d.Destination.Port, d.Protocol, d.Reason, d.Rule,
		d.Hook, d.Direction)
	if d.Protocol != "TCP" && d.Protocol != "UDP" && d.Protocol != "SCTP" {
		key += d.Summary
	}
	have := e.seen[key]
	if have == nil || e.why.Follow {
		e.ask(ctx, res.GetFlow(), d)
	}
	switch {
	case e.why.Follow:
		if have != nil && len(e.seen) < maxExplained {
			have.Packets++
			d.Packets = have.Packets
		} else {
			e.seen[key] = d
		}
		return e.write(w, d, have != nil)
	case have != nil:
		have.Packets, have.Time = have.Packets+1, d.Time
	default:
		e.seen[key], e.order = d, append(e.order, d)
	}
	return nil
}

// onlyVerdicts reports whether filters select verdicts of policies, but not the drops that follow them.
func onlyVerdicts(allow []*flowpb.FlowFilter) bool {
	selects := func(number int32) bool {
		return slices.ContainsFunc(allow, func(f *flowpb.FlowFilter) bool {
			return slices.ContainsFunc(f.GetEventType(), func(t *flowpb.EventTypeFilter) bool {
				return t.GetType() == number
			})
		})
	}
	return selects(eventtype.PolicyVerdict) && !selects(eventtype.Drop)
}

// maxExplained bounds what is remembered of drops that are followed.
const maxExplained = 10_000

// drop is what the flow itself says.
func (e *explaining) drop(f *flowpb.Flow) *droppedFlow {
	ext := consumer.Extension(f)
	text := func(key string) string { return ext[key].GetStringValue() }
	from, to := printer.Ports(f)
	d := &droppedFlow{Time: f.GetTime().AsTime(), Node: f.GetNodeName(), Protocol: printer.Protocol(f),
		Summary: f.GetSummary(), //nolint:staticcheck // what servers set
		Packets: 1, Verdict: f.GetVerdict().String(), Reason: cmp.Or(text("reason"), printer.Reason(f)),
		Hook: text("hook"), Rule: text("policy"), Policies: printer.Policies(f), name: text("outcome"),
		Source: endOf(f.GetSource(), f.GetSourceService(), f.GetSourceNames(), f.GetIP().GetSource(), from),
		Destination: endOf(f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames(),
			f.GetIP().GetDestination(), to)}
	if f.GetIP() == nil {
		d.Source.Name, d.Destination.Name = f.GetEthernet().GetSource(), f.GetEthernet().GetDestination()
	}
	switch f.GetTrafficDirection() {
	case flowpb.TrafficDirection_INGRESS:
		d.Direction = "ingress"
	case flowpb.TrafficDirection_EGRESS:
		d.Direction = "egress"
	}
	if o, ok := e.reasons.ByName(d.name); ok {
		d.What, d.Do = o.What, o.Do
	}
	return d
}

func endOf(p *flowpb.Endpoint, s *flowpb.Service, names []string, address string, port uint32) droppedEnd {
	out := droppedEnd{Name: printer.Name(p, s, names, address), Address: address, Port: port,
		Identity: p.GetIdentity(), Labels: p.GetLabels()}
	if s.GetName() != "" {
		out.Service = s.GetNamespace() + "/" + s.GetName()
	}
	return out
}

// ask asks the agent what policies say now, where policies dropped it.
func (e *explaining) ask(ctx context.Context, f *flowpb.Flow, d *droppedFlow) {
	if d.Rule == "" && len(d.Policies) == 0 || e.agent == nil {
		return
	}
	port := fmt.Sprintf("%d/%s", d.Destination.Port, d.Protocol)
	switch l4 := f.GetL4(); {
	case l4.GetICMPv4() != nil:
		port = fmt.Sprintf("%d/ICMP", l4.GetICMPv4().GetType())
	case l4.GetICMPv6() != nil:
		port = fmt.Sprintf("%d/ICMPv6", l4.GetICMPv6().GetType())
	}
	q := &apiv1.TracePoliciesRequest{From: d.Source.Address, To: d.Destination.Address, Port: port}
	key := q.String()
	t, ok := e.answers[key]
	if !ok {
		answer, err := e.agent.TracePolicies(ctx, q, large())
		if err == nil {
			t = &explain.Trace{}
			err = json.Unmarshal(answer.GetJson(), t)
		}
		if err != nil {
			d.Note = "what would allow it is not known: " + agentError(err, e.socket).Error()
			return
		}
		if len(e.answers) >= maxExplained {
			clear(e.answers)
		}
		e.answers[key] = t
	}
	d.Now = t.Verdict
	for i := range t.Ways {
		for _, side := range []*explain.Side{&t.Ways[i].Egress, &t.Ways[i].Ingress} {
			for _, change := range side.Change {
				if !side.Allowed() && !slices.Contains(d.Allow, change) {
					d.Allow = append(d.Allow, change)
				}
			}
		}
	}
}

// finish writes what was counted, and the counters of which no event is kept.
func (e *explaining) finish(ctx context.Context, w io.Writer, counters bool) error {
	slices.SortStableFunc(e.order, func(a, b *droppedFlow) int { return a.Time.Compare(b.Time) })
	var rest []*dropRow
	if counters {
		var err error
		if rest, err = e.unseen(ctx); err != nil {
			return err
		}
	}
	if e.output.structured() {
		return e.output.write(w, struct {
			Flows    []*droppedFlow `json:"flows"`
			Counters []*dropRow     `json:"counters"` // of reasons without flows
		}{append([]*droppedFlow{}, e.order...), append([]*dropRow{}, rest...)})
	}
	for _, d := range e.order {
		if err := e.write(w, d, false); err != nil {
			return err
		}
	}
	switch {
	case len(rest) == 0 && len(e.order) == 0:
		_, err := fmt.Fprintln(w, "nothing was dropped")
		return err
	case len(rest) == 0:
		return nil
	}
	if _, err := fmt.Fprintln(w, "Counted since the datapath was loaded, and no flow is kept:"); err != nil {
		return err
	}
	return writeDrops(w, rest)
}

// unseen are the counters of reasons that no flow had.
func (e *explaining) unseen(ctx context.Context) ([]*dropRow, error) {
	rows, err := e.read(ctx)
	return slices.DeleteFunc(rows, func(r *dropRow) bool {
		return slices.ContainsFunc(e.order, func(d *droppedFlow) bool { return d.name == r.Name })
	}), err
}

// write writes a drop. One that was explained before is one line.
func (e *explaining) write(w io.Writer, d *droppedFlow, again bool) error {
	if e.output.structured() {
		return e.output.writeItem(w, d)
	}
	var b strings.Builder
	summary, _, _ := strings.Cut(d.Summary, ";") // the reason follows
	fmt.Fprintf(&b, "%s  %s -> %s  %s  %s", d.Time.Local().Format("15:04:05.000"), d.Source.where(),
		d.Destination.where(), printer.Printable(summary), d.Verdict)
	if d.Packets > 1 {
		fmt.Fprintf(&b, " ×%d", d.Packets)
	}
	b.WriteByte('\n')
	if !again {
		d.lines(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (d *droppedFlow) lines(b *strings.Builder) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "    %-12s %s\n", name+":", printer.Printable(text))
		}
	}
	line("where", strings.Trim(d.Hook+" on "+d.Node, " "))
	line("reason", strings.TrimSuffix(d.Reason+": "+d.What, ": "))
	line("do", d.Do)
	if d.Rule != "" {
		line("policy", strings.TrimSpace(d.Direction+" denied: "+d.Rule))
	}
	line("source", d.Source.labels())
	line("destination", d.Destination.labels())
	if d.Now != "" && d.Now != explain.Denied {
		line("now", "policies have changed: "+d.Now)
	}
	for i, change := range d.Allow {
		line(map[bool]string{true: "would allow", false: "or"}[i == 0], change)
	}
	line("note", d.Note)
}

// where is the end with its address and port.
func (e *droppedEnd) where() string {
	text := e.Address
	if e.Port != 0 {
		text = net.JoinHostPort(text, strconv.Itoa(int(e.Port)))
	}
	if e.Name != e.Address {
		text = strings.TrimSpace(e.Name + " " + text)
	}
	return printer.Printable(text)
}

// labels are the identity's, without those of the namespace.
func (e *droppedEnd) labels() string {
	if e.Address == "" {
		return ""
	}
	text := fmt.Sprintf("identity %d", e.Identity)
	if len(e.Labels) > 0 {
		text += ", " + shortLabels(strings.Join(e.Labels, ","))
	}
	if e.Service != "" {
		text += ", Service " + e.Service
	}
	return text
}
