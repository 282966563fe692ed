package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/spf13/cobra"

	"myelin/agent/feature"
	"myelin/hubble/printer"
	"myelin/hubble/query"
	"myelin/hubble/top"
)

type flowTopFlags struct {
	observerFlags
	filters          query.Filters
	output           output
	sort             string
	interval, window time.Duration
	once             bool
	count, lines     int
}

// flowTopWindow is longer than the time after which a flow that goes on is reported again.
const flowTopWindow = 10 * time.Second

func flowTopCommand() *cobra.Command {
	f := &flowTopFlags{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the busiest flows, Services and drops, live",
		Long: "Counts the flows of this node, or with --server of all nodes of a relay, as they are observed. On a " +
			"terminal the view is drawn in place; otherwise each interval is a block of lines, or an object. Rates " +
			"are means of the last --window. Connections of one client to one port are one row. Of TCP only packets " +
			"with SYN, FIN or RST are reported: compare its flows by new ones, and Services by myelin service top. " +
			"Filters are those of myelin observe.",
		Example: "  myelin top --sort drops\n  myelin top --namespace demo --once -o json\n" +
			"  myelin top --server localhost:4245",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd)
	flags := cmd.Flags()
	outputFlag(cmd, &f.output, "")
	flags.StringVar(&f.sort, "sort", string(top.ByPackets), "what comes first: most "+flowTopOrders())
	flags.DurationVar(&f.interval, "interval", 2*time.Second, "between two views")
	flags.DurationVar(&f.window, "window", flowTopWindow, "that a view is the mean of")
	flags.BoolVar(&f.once, "once", false, "end after one view")
	flags.IntVarP(&f.count, "count", "c", 0, "end after so many views; 0: never")
	flags.IntVar(&f.lines, "lines", 10, "rows of each table; 0: all")
	filterFlags(cmd, &f.filters)
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(strings.Split(flowTopOrders(), ", "),
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func flowTopOrders() string {
	var words []string
	for _, o := range top.Orders() {
		words = append(words, string(o))
	}
	return strings.Join(words, ", ")
}

func (f *flowTopFlags) check() error {
	switch {
	case !slices.Contains(top.Orders(), top.Order(f.sort)):
		return fmt.Errorf("--sort %s: want one of %s", f.sort, flowTopOrders())
	case f.interval < topInterval:
		return fmt.Errorf("--interval %s: want %s or more", f.interval, topInterval)
	case f.window <= 0:
		return fmt.Errorf("--window %s: want more than 0", f.window)
	case f.count < 0:
		return fmt.Errorf("--count %d: want 0 or more", f.count)
	case f.lines < 0:
		return fmt.Errorf("--lines %d: want 0 or more", f.lines)
	case f.once && f.count > 1:
		return errors.New("--once and --count exclude each other")
	}
	if f.once {
		f.count = 1
	}
	return nil
}

// run follows the observer and shows a view after each interval, until it is interrupted or the stream ends.
func (f *flowTopFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	req, err := query.Range{Follow: true}.Request(&f.filters, time.Now())
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	counter := top.New(f.window, time.Now())
	ended := make(chan error, 1)
	go func() {
		err := f.each(ctx, req, func(res *observerpb.GetFlowsResponse) error {
			counter.Add(res)
			return nil
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the observer has ended the stream")
		}
		ended <- err
	}()
	live := liveView[*top.View]{output: &f.output, interval: f.interval, count: f.count, ended: ended,
		next: func(_ context.Context, at time.Time) (*top.View, error) {
			return counter.View(at, top.Order(f.sort), f.lines), nil
		},
		text: func(v *top.View) string { return flowTopText(v, f.sort) },
	}
	return live.run(ctx, cmd.OutOrStdout())
}

// flowTopText is a view as text: three tables.
func flowTopText(v *top.View, by string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  mean of %.1fs, by %s; %s", v.Time.Format("15:04:05"), v.Seconds, by,
		feature.Plural(int(v.Events), "event"))
	if v.Lost > 0 {
		fmt.Fprintf(&b, ", %d more were lost", v.Lost)
	}
	if v.LeftOut > 0 {
		fmt.Fprintf(&b, ", %d of more rows than are kept", v.LeftOut)
	}
	b.WriteByte('\n')
	for _, node := range slices.Sorted(maps.Keys(v.Away)) {
		fmt.Fprintf(&b, "without %s: %s\n", printer.Printable(node), printer.Printable(v.Away[node]))
	}
	head := []string{"Packets/s", "Bytes/s", "New flows/s", "Drops/s"}
	lines := [][]string{append([]string{"Flow", "Protocol"}, head...), append([]string{"total", ""},
		flowRates(&v.Total)...)}
	for _, r := range v.Flows {
		lines = append(lines, append([]string{pairText(r.Pair), r.Protocol}, flowRates(&r.Rate)...))
	}
	b.WriteString("\n" + aligned(lines, 2, 6))
	lines = [][]string{append([]string{"Service", ""}, head...)}
	for _, r := range v.Services {
		lines = append(lines, append([]string{printer.Printable(r.Name), ""}, flowRates(&r.Rate)...))
	}
	if len(lines) > 1 {
		b.WriteString("\n" + aligned(lines, 2, 6))
	}
	lines = [][]string{{"Dropped", "Protocol", "Packets", "Drops/s", "Reason", "Rule"}}
	for _, r := range v.Drops {
		reason := strings.TrimSpace(r.Direction + " " + r.Reason)
		if r.Audited {
			reason += " (audited)"
		}
		lines = append(lines, []string{pairText(r.Pair), r.Protocol, strconv.FormatUint(r.Packets, 10),
			rateText(r.PerSecond), printer.Printable(reason), printer.Printable(r.Rule)})
	}
	if len(lines) > 1 {
		b.WriteString("\n" + aligned(lines, 2, 4))
	}
	return b.String()
}

func pairText(p top.Pair) string {
	to := p.Destination
	if p.Port != 0 {
		to = net.JoinHostPort(to, strconv.Itoa(int(p.Port)))
	}
	return printer.Printable(p.Source + " -> " + to)
}

func flowRates(r *top.Rate) []string {
	bytes := "-"
	if r.Bytes != nil {
		bytes = rateText(*r.Bytes)
	}
	return []string{rateText(r.Packets), bytes, rateText(r.NewFlows), rateText(r.Drops)}
}
