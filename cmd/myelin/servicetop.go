package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
	"myelin/service/stats"
)

type topFlags struct {
	*listFlags
	by       string
	interval time.Duration
	count    int
	once     bool
	names    []string // of Services; empty: all
}

// topInterval is the shortest interval: each reading is work for the agent.
const topInterval = 100 * time.Millisecond

func topCommand(list *listFlags) *cobra.Command {
	f := &topFlags{listFlags: list}
	cmd := &cobra.Command{
		Use: "top [NAME…]", Short: "Show packets, bytes and new flows per second by Service and backend, live",
		Long: "Shows what Services and their backends do on this node, the busiest first, until Ctrl-C. On a " +
			"terminal the view is drawn in place; otherwise each interval is a block of lines, or an object. " +
			"Services without traffic are left out of text. NAME is NAMESPACE/NAME or NAME of a Service. Sockets " +
			"that are translated at connect() count as new flows only: their packets go to the backend without " +
			"translation.",
		Example: "  myelin service top --by bytes\n  myelin service top demo/web --count 10 -o json",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.names = args
			return f.run(cmd)
		},
	}
	cmd.ValidArgsFunction = completion(&f.socket, cells("services", "Service", ""))
	cmd.Flags().StringVar(&f.by, "by", string(stats.ByPackets), "what comes first: most packets, bytes or flows")
	cmd.Flags().DurationVar(&f.interval, "interval", time.Second, "between two views")
	cmd.Flags().IntVarP(&f.count, "count", "n", 0, "end after so many views; 0: never")
	cmd.Flags().BoolVar(&f.once, "once", false, "end after one view")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(topOrders(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func topOrders() []string {
	return []string{string(stats.ByPackets), string(stats.ByBytes), string(stats.ByFlows)}
}

func (f *topFlags) check() error {
	if !slices.Contains(topOrders(), f.by) {
		return fmt.Errorf("--by %s: want packets, bytes or flows", f.by)
	}
	if f.interval < topInterval {
		return fmt.Errorf("--interval %s: want %s or more", f.interval, topInterval)
	}
	if f.count < 0 {
		return fmt.Errorf("--count %d: want 0 or more", f.count)
	}
	return nil
}

// run shows a view after each interval until it is interrupted.
func (f *topFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if f.once {
		f.count = 1
	}
	before, err := f.read(ctx)
	if err == nil {
		err = f.missing(before)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	last := time.Now()
	live := liveView[*stats.View]{output: &f.output, interval: f.interval, count: f.count,
		next: func(ctx context.Context, _ time.Time) (*stats.View, error) {
			now, err := f.read(ctx)
			if err != nil {
				return nil, err
			}
			at := time.Now() // of the answer: the tick may have waited
			view := stats.Rates(before, now, at, at.Sub(last), stats.Order(f.by))
			before, last = now, at
			return view, nil
		},
		text: func(v *stats.View) string { return topText(v, f.by, len(f.names) > 0, f.output.wide()) },
	}
	return live.run(ctx, cmd.OutOrStdout())
}

// read reads the counters of the Services with one of the names.
func (f *topFlags) read(ctx context.Context) ([]*stats.Entry, error) {
	answer, err := f.list(ctx, &apiv1.ListRequest{Table: "service-stats", Json: true})
	if err != nil {
		return nil, err
	}
	var list []*stats.Entry
	if err := json.Unmarshal(answer.GetJson(), &list); err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	if len(f.names) == 0 {
		return list, nil
	}
	return slices.DeleteFunc(list, func(e *stats.Entry) bool {
		return !slices.ContainsFunc(f.names, func(name string) bool { return topNamed(e.Service, name) })
	}), nil
}

// topNamed reports whether a Service is meant by a name, with its namespace or without.
func topNamed(service, name string) bool {
	return service == name || strings.HasSuffix(service, "/"+name)
}

// missing returns an error about the first name that no counters have.
func (f *topFlags) missing(list []*stats.Entry) error {
	for _, name := range f.names {
		if !slices.ContainsFunc(list, func(e *stats.Entry) bool { return topNamed(e.Service, name) }) {
			return fmt.Errorf("no backend of a Service %s has counters: see myelin service list and "+
				"myelin service stats", name)
		}
	}
	return nil
}
