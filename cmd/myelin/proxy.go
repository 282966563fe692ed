package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"myelin/internal/logs"
	"myelin/l7/control"
	"myelin/l7/proxy"
)

// proxyCheckTime bounds the answer to `myelin proxy check`.
const proxyCheckTime = 3 * time.Second

func proxyCommand() *cobra.Command {
	var runDir, bpfRoot, logFormat, pod string
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Run the node's proxy for L7 rules",
		Long: "The proxy enforces policies by HTTP request, DNS name and TLS server name on the flows that the " +
			"datapath redirects to it. The agent starts it where policies need it, unless myelin.proxy.supervise is " +
			"false, as it is where DaemonSet myelin-proxy runs it. It goes on without the agent. A second one takes " +
			"over from the first, which then serves the connections that it has.",
		Args: knownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error {
			queues, err := proxy.Enter(runDir)
			if err != nil {
				return err
			}
			log, err := logs.New(os.Stderr, cmp.Or(logFormat, logs.Text), false, nil)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT)
			defer stop()
			ctx, ending, stopEnding := endings(ctx)
			defer stopEnding()
			return proxy.Run(ctx, proxy.Params{RunDir: runDir, BPFDir: filepath.Join(bpfRoot, "myelin"),
				Queues: queues, Log: log, Ending: ending, Version: buildVersion(), Pod: pod})
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	cmd.Flags().StringVar(&bpfRoot, "bpf-root", "/sys/fs/bpf", "where BPF maps are pinned (myelin.bpfRoot)")
	cmd.Flags().StringVar(&pod, "pod", "", "the pod that it runs in, as NAMESPACE/NAME, for status")
	addLogFormat(cmd, &logFormat)
	cmd.AddCommand(proxyCheckCommand())
	return cmd
}

// endings are contexts that are done by the second SIGTERM, and by the first.
func endings(ctx context.Context) (now, ending context.Context, stop func()) {
	now, stopNow := context.WithCancel(ctx)
	ending, stopEnding := context.WithCancel(now)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for _, end := range []func(){stopEnding, stopNow} {
			select {
			case <-signals:
				end()
			case <-now.Done():
			}
		}
	}()
	return now, ending, func() {
		signal.Stop(signals)
		stopEnding()
		stopNow()
	}
}

func proxyCheckCommand() *cobra.Command {
	var runDir string
	var own bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Fail if no proxy answers",
		Long:  "For probes of the proxy's pod.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), proxyCheckTime)
			defer cancel()
			if _, err := control.NewClient(runDir).Status(ctx); err != nil || !own {
				return err
			}
			pid, err := control.Process(runDir)
			if err == nil && pid == 0 {
				err = errors.New("the proxy of another pod answers")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	cmd.Flags().BoolVar(&own, "own", false, "fail also if it is in another container")
	return cmd
}
