package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
)

type dropsFlags struct {
	listFlags
	all, watch bool
	every      time.Duration
	why        explainFlags
}

func dropsCommand() *cobra.Command {
	f := &dropsFlags{}
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show dropped packets by hook and drop reason, with remedies",
		Long: "Shows the datapath's counters by hook and reason. They go on over restarts of the agent. " +
			"Some drops are part of every pod's start, as the explanations say. What policies dropped is shown by " +
			"endpoint, direction and rule as well: " +
			"flows, and packets that belong to none, counted since the endpoint's rules changed.\n\n" +
			"With --explain it shows the dropped flows that are kept (or with --follow those that come), each with " +
			"the reason and what to do about it, the rule that denied, the labels of both ends, and which change of " +
			"a policy would allow it; then the counters of reasons without flows. Filters are those of myelin observe.",
		Example: "  myelin drops --explain --namespace demo\n  myelin drops --explain --follow",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.why.on {
				return f.explainAll(cmd)
			}
			if f.watch {
				return f.follow(cmd)
			}
			rows, err := f.read(cmd.Context())
			if err != nil {
				return err
			}
			if f.output.structured() {
				return f.output.write(cmd.OutOrStdout(), rows)
			}
			return writeDrops(cmd.OutOrStdout(), rows)
		},
	}
	socketFlag(cmd, &f.socket)
	outputFlag(cmd, &f.output, "")
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "also packets that went their way")
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "go on, and show what was added")
	cmd.Flags().DurationVar(&f.every, "interval", time.Second, "of --watch")
	f.why.add(cmd)
	return cmd
}

func (f *dropsFlags) read(ctx context.Context) ([]*dropRow, error) {
	req := &apiv1.ListRequest{Table: "drops", Json: true}
	if !f.all {
		req.Filters = []*apiv1.ListFilter{{Column: "Verdict", Value: "drop"}}
	}
	rows, rules := []*dropRow{}, []*ruleDrops{}
	err1 := f.table(ctx, req, &rows)
	err2 := f.table(ctx, &apiv1.ListRequest{Table: "policy-drops", Json: true}, &rules)
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	return withRules(rows, rules), nil
}

// table reads the rows of one table.
func (f *dropsFlags) table(ctx context.Context, req *apiv1.ListRequest, rows any) error {
	answer, err := f.list(ctx, req)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer.GetJson(), rows); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}

// writeDrops shows counters, then what each reason means.
func writeDrops(w io.Writer, rows []*dropRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "nothing was dropped")
		return err
	}
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "Hook\tVerdict\tReason\tPackets\tBytes")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\n", r.Hook, r.Verdict, r.Reason, r.Packets, r.Bytes)
	}
	tw.Flush()
	told := map[string]bool{}
	for _, r := range rows {
		if r.Verdict == "drop" && !told[r.Name] {
			told[r.Name] = true
			fmt.Fprintf(&b, "\n%s: %s\n    %s\n", r.Reason, r.What, r.Do)
			r.writeRules(&b)
		}
	}
	return writeTrimmed(w, &b)
}

// follow shows what was added in each interval until it is interrupted.
func (f *dropsFlags) follow(cmd *cobra.Command) error {
	ctx, stop := untilSignal(cmd)
	defer stop()
	before, err := f.read(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(max(f.every, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := f.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.writeAdded(cmd.OutOrStdout(), time.Now(), added(before, now)); err != nil {
			return err
		}
		before = now
	}
}

// added are the counters that grew, by how much.
func added(before, now []*dropRow) []*dropRow {
	type key struct{ hook, name string }
	was := map[key]*dropRow{}
	for _, r := range before {
		was[key{string(r.Hook), r.Name}] = r
	}
	var grown []*dropRow
	for _, r := range now {
		d := dropRow{Row: r.Row, Rules: r.Rules}
		// Smaller ones were made anew with the datapath.
		if o := was[key{string(r.Hook), r.Name}]; o != nil && o.Packets <= r.Packets {
			d.Packets, d.Bytes = r.Packets-o.Packets, r.Bytes-o.Bytes
			d.Rules = addedRules(o.Rules, r.Rules)
		}
		if d.Packets > 0 {
			grown = append(grown, &d)
		}
	}
	return grown
}

func (f *dropsFlags) writeAdded(w io.Writer, now time.Time, rows []*dropRow) error {
	for _, r := range rows {
		var err error
		if f.output.structured() {
			err = f.output.writeItem(w, r)
		} else {
			_, err = fmt.Fprintf(w, "%s %-9s %s: %s  +%d packets, +%d bytes\n", now.Format("15:04:05"), r.Hook,
				r.Verdict, r.Reason, r.Packets, r.Bytes)
		}
		if err == nil && !f.output.structured() {
			err = r.writeRules(w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
