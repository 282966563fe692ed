package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/spf13/cobra"

	"myelin/agent/feature"
	apiv1 "myelin/api/v1"
	"myelin/hubble/printer"
	"myelin/hubble/record"
	"myelin/policy/replay"
)

// replay asks for the verdicts on the flows of a file.
func (f *diffFlags) replay(cmd *cobra.Command, req *apiv1.DiffPoliciesRequest) error {
	c, gaps, err := f.readFlows(cmd)
	if err != nil {
		return err
	}
	rec := c.Recording()
	if req.Recording, err = json.Marshal(rec); err != nil {
		return err
	}
	answer, err := f.ask(cmd.Context(), req)
	if err != nil {
		return err
	}
	var r replay.Result
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	r.Undecided = append(r.Undecided, c.Undecided()...)
	r.Skipped, r.Gaps = c.Skipped, gaps
	if f.list.output.structured() {
		err = f.list.output.write(cmd.OutOrStdout(), &r)
	} else {
		err = writeReplay(cmd.OutOrStdout(), &r, f.limit)
	}
	if err == nil && r.Changed > 0 {
		err = exitStatus(1)
	}
	return err
}

// maxGaps bounds the gaps of a recording that are listed one by one.
const maxGaps = 20

// readFlows reads a recording and returns its gaps. Lines that are no flows are reported and left out.
func (f *diffFlags) readFlows(cmd *cobra.Command) (*replay.Collector, []string, error) {
	in := cmd.InOrStdin()
	if f.flows != "-" {
		file, err := os.Open(f.flows)
		if err != nil {
			return nil, nil, fmt.Errorf("--flows: %w", err)
		}
		defer file.Close()
		in = file
	}
	c := replay.NewCollector()
	var gaps []string
	flows, more := 0, 0
	err := record.Read(in, f.flows, func(res *observerpb.GetFlowsResponse) error {
		if res.GetFlow() != nil {
			flows++
			c.Add(res.GetFlow())
		} else if text := record.Gap(res); text != "" && len(gaps) == maxGaps {
			more++
		} else if text != "" {
			gaps = append(gaps, text)
		}
		return nil
	})
	var bad *record.Malformed
	if errors.As(err, &bad) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%v\n", bad)
		err = nil
	}
	if err == nil && flows == 0 {
		err = fmt.Errorf("--flows %s: there is no flow in it", f.flows)
	}
	if more > 0 {
		gaps = append(gaps, feature.Plural(more, "more gap"))
	}
	return c, gaps, err
}

// writeReplay writes flows by owner, at most limit of each.
func writeReplay(w io.Writer, r *replay.Result, limit int) error {
	var b strings.Builder
	for _, o := range r.Objects {
		fmt.Fprintf(&b, "%s %s\n", o.Object, o.Change)
	}
	fmt.Fprintf(&b, "flows: %d of %d change, of %s\n", r.Changed, r.Flows, connections(r.Connections))
	for _, o := range r.Owners {
		var parts []string
		for _, n := range []struct {
			count int
			word  string
		}{{o.Denied, "denied"}, {o.Allowed, "allowed"}, {o.Audited, "audited"}} {
			if n.count > 0 {
				parts = append(parts, fmt.Sprintf("%s newly %s", connections(n.count), n.word))
			}
		}
		if len(parts) == 0 {
			parts = []string{"no change"}
		}
		fmt.Fprintf(&b, "\n%s: %s\n", printer.Printable(o.Owner), strings.Join(parts, ", "))
		for i := range o.Flows {
			if limit > 0 && i == limit {
				fmt.Fprintf(&b, "  … and %d more; --limit 0 shows all\n", len(o.Flows)-limit)
				break
			}
			writeReplayed(&b, &o.Flows[i])
		}
	}
	if len(r.Undecided) > 0 {
		b.WriteString("\nnot decided:\n")
	}
	for _, u := range r.Undecided {
		fmt.Fprintf(&b, "  %s: %s; such as %s\n", feature.Plural(u.Events, "event"), printer.Printable(u.Reason),
			printer.Printable(u.Example))
	}
	if r.Unlike > 0 {
		fmt.Fprintf(&b, "\nrecorded under other policies or labels: %s, such as %s\n", feature.Plural(r.Unlike, "flow"),
			printer.Printable(r.UnlikeExample))
	}
	for _, gap := range r.Gaps {
		fmt.Fprintf(&b, "missing in the recording: %s\n", printer.Printable(gap))
	}
	if r.Unfinished != "" {
		fmt.Fprintf(&b, "not all was compared: %s\n", r.Unfinished)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeReplayed(b *strings.Builder, c *replay.Change) {
	verdict := c.After.Verdict
	if c.Changed {
		verdict = c.Before.Verdict + " -> " + c.After.Verdict
	}
	family := "IPv4"
	if c.DestinationAddress.Is6() {
		family = "IPv6"
	}
	fmt.Fprintf(b, "  %s -> %s %s %s: %s, %s\n", printer.Printable(c.Source),
		printer.Printable(c.Destination), c.Port, family, verdict, connections(c.Connections))
	if c.Changed {
		fmt.Fprintf(b, "    before: %s\n    after: %s\n", why(&c.Before), why(&c.After))
	}
}

func connections(n int) string { return feature.Plural(n, "connection") }

// why is what decides, in words.
func why(v *replay.Verdict) string {
	switch {
	case v.Rule != "":
		return printer.Printable(v.Direction + ", " + v.Rule)
	case v.Isolating != "":
		return printer.Printable(v.Direction + ", no rule allows it: isolated by " + v.Isolating)
	case v.Direction != "":
		return v.Direction + ", no rule allows it"
	}
	return "no policy isolates or denies"
}
