package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/agent/feature"
	"myelin/hubble/query"
	"myelin/hubble/record"
)

type recordFlags struct {
	observerFlags
	query.Range
	filters  query.Filters
	duration time.Duration
	appends  bool
}

// flowVerbs are those about flows that show no table.
func flowVerbs(*listFlags) []*cobra.Command { return []*cobra.Command{(&recordFlags{}).command()} }

func (f *recordFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Record flows to a file, for myelin policy diff --flows and hubble observe --input-file",
		Long: "Writes the flows of this node, or with --server of all nodes of a relay, to FILE, an object a line. " +
			"Without --last, --since, --until or --all it records from now on, until Ctrl-C or for --duration. FILE " +
			"appears, or is replaced, in the end; with --append it grows meanwhile. Events that were lost and nodes " +
			"that are away are lines of their own; if the observer goes away, recording goes on when it is back. " +
			"Filters are those of myelin observe.",
		Example: "  myelin flows record /tmp/flows.json --duration 10m --server localhost:4245\n" +
			"  myelin flows record /tmp/flows.json --since 1h --namespace demo",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Uint64Var(&f.Last, "last", 0, "the last N flows")
	flags.BoolVar(&f.All, "all", false, "all flows that are kept")
	flags.StringVar(&f.Since, "since", "", "flows since how long ago (3s, 1h30m) or a time (2006-01-02T15:04:05Z)")
	flags.StringVar(&f.Until, "until", "", "flows until then")
	flags.BoolVar(&f.Follow, "follow", false, "go on with flows as they happen, after those of the past")
	flags.DurationVar(&f.duration, "duration", 0, "how long to record; implies --follow")
	flags.BoolVar(&f.appends, "append", false, "append to FILE while recording, instead of replacing it in the end")
	filterFlags(cmd, &f.filters)
	return cmd
}

func (f *recordFlags) run(cmd *cobra.Command, path string) error {
	if f.duration < 0 {
		return fmt.Errorf("--duration %s: want more than 0", f.duration)
	}
	f.Follow = f.Follow || f.duration > 0 || f.Last == 0 && f.Since == "" && f.Until == "" && !f.All
	req, err := f.Range.Request(&f.filters, time.Now())
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx) // a deadline would reach the observer, which may end the stream by it
		defer cancel()
		defer time.AfterFunc(f.duration, cancel).Stop()
	}
	w, err := record.Create(path, f.appends)
	if err != nil {
		return err
	}
	err = f.record(ctx, cmd.ErrOrStderr(), w, req)
	if w.Flows == 0 && err != nil && !f.appends {
		return errors.Join(err, w.Discard())
	}
	if closing := w.Close(); closing != nil {
		return errors.Join(err, closing)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s recorded to %s", feature.Plural(int(w.Flows), "flow"), path)
	if w.Gaps > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "; %s, %s lost", feature.Plural(int(w.Gaps), "gap"),
			feature.Plural(int(w.Lost), "event"))
	}
	fmt.Fprintln(cmd.ErrOrStderr())
	return err
}

// recordRetry is the wait between attempts to reach an observer that is away.
const recordRetry = time.Second

// record writes until the context ends. An observer that answered once is waited for.
func (f *recordFlags) record(ctx context.Context, stderr io.Writer, w *record.Writer,
	req *observerpb.GetFlowsRequest) error {
	answered, away := false, false
	for {
		began := time.Now()
		err := f.each(ctx, req, func(res *observerpb.GetFlowsResponse) error {
			if away {
				away = false
				if err := w.Resumed(f.target(), time.Now()); err != nil {
					return written{err}
				}
			}
			answered = true
			if err := w.Write(res); err != nil {
				return written{err}
			}
			if f.appends {
				if err := w.Flush(); err != nil {
					return written{err}
				}
			}
			return nil
		})
		answered = answered || time.Since(began) > recordRetry
		var broken written
		switch {
		case ctx.Err() != nil, err == nil && !req.GetFollow():
			return nil
		case errors.As(err, &broken), !answered || !req.GetFollow():
			return err
		}
		if err == nil {
			err = errors.New("the observer has ended the stream")
		}
		if !away {
			away = true
			fmt.Fprintf(stderr, "%v; waiting for it\n", err)
			if err := w.Interrupted(f.target(), oneLine(err), time.Now()); err != nil {
				return err
			}
		}
		if w.Last.IsZero() {
			w.Last = time.Now()
		}
		req.Number, req.Since = 0, timestamppb.New(w.Last.Add(time.Nanosecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recordRetry):
		}
	}
}

// written is an error of the file, not of the observer.
type written struct{ error }

func (w written) Unwrap() error { return w.error }

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
