package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	apiv1 "myelin/api/v1"
	"myelin/status"
)

type statusFlags struct {
	clusterFlags

	socket   string
	output   output
	verbose  bool
	wait     bool
	patience time.Duration
	cluster  bool
}

func statusCommand() *cobra.Command {
	f := &statusFlags{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of each feature: requested, effective, the reason, and its cost",
		Long: "Shows the state of the node's network as its agent knows it, and as the kernel has it. " +
			"The exit status is 1 if something is broken or no agent answers; a fallback is no failure. " +
			"With --cluster it is the state of all nodes, which a kubeconfig or --lab leads to: a line for each, " +
			"with --verbose the whole report.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	socketFlag(cmd, &f.socket)
	outputFlag(cmd, &f.output, "; wide is --verbose")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "reasons of everything, devices, maps and tables")
	f.add(cmd)
	cmd.Flags().BoolVar(&f.cluster, "cluster", false, "all nodes of the cluster")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the agent is ready and nothing is broken")
	cmd.Flags().DurationVar(&f.patience, "wait-duration", 5*time.Minute, "how long to wait")
	return cmd
}

func (f *statusFlags) run(cmd *cobra.Command) error {
	if f.cluster {
		return f.runCluster(cmd)
	}
	report, err := f.report(cmd.Context())
	if err != nil {
		return err
	}
	if f.output.structured() {
		err = f.output.write(cmd.OutOrStdout(), report)
	} else {
		err = report.Render(cmd.OutOrStdout(), f.style(cmd.OutOrStdout()))
	}
	if err != nil {
		return err
	}
	if report.State == status.Broken {
		return exitStatus(1)
	}
	return nil
}

func (f *statusFlags) style(w io.Writer) status.Style {
	return status.Style{Width: columns(w), Color: colored(w), Verbose: f.verbose || f.output.wide()}
}

// report asks once, or until the answer is good. When patience ends, the last
// answer counts.
func (f *statusFlags) report(ctx context.Context) (*status.Report, error) {
	if !f.wait {
		return fetchStatus(ctx, f.socket)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.patience, fmt.Errorf("not ready after %s", f.patience))
	defer cancel()
	var last *status.Report
	for {
		report, err := fetchStatus(ctx, f.socket)
		if err == nil {
			last = report
			if report.ReadyMs > 0 && report.State != status.Broken {
				return report, nil
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			if last != nil {
				return last, nil
			}
			return nil, fmt.Errorf("wait for the agent: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// askTimeout bounds one question to an agent.
const askTimeout = 30 * time.Second

func fetchStatus(ctx context.Context, socket string) (*status.Report, error) {
	client, done, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := client.Status(ctx, &apiv1.StatusRequest{}, large())
	if err != nil {
		return nil, agentError(err, socket)
	}
	report := &status.Report{}
	if err := json.Unmarshal(answer.GetJson(), report); err != nil {
		return nil, fmt.Errorf("read the agent's status: %w", err)
	}
	return report, nil
}

// colored reports whether w is a terminal whose user has not asked for plain
// text (no-color.org).
func colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
