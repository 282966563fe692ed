package main

import (
	"cmp"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"myelin/internal/logs"
	"myelin/l7/proxy"
)

func proxyCommand() *cobra.Command {
	var runDir, bpfRoot, logFormat string
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Run the node's proxy for L7 rules",
		Long: "The proxy enforces policies by HTTP request, DNS name and TLS server name on the flows that the " +
			"datapath redirects to it. The agent starts it where policies need it, unless myelin.proxy.supervise is " +
			"false. It goes on without the agent. A second one takes over from the first, which then serves the " +
			"connections that it has.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			queues, err := proxy.Enter(runDir)
			if err != nil {
				return err
			}
			log, err := logs.New(os.Stderr, cmp.Or(logFormat, logs.Text), false, nil)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return proxy.Run(ctx, proxy.Params{RunDir: runDir, BPFDir: filepath.Join(bpfRoot, "myelin"),
				Queues: queues, Log: log, Version: buildVersion()})
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	cmd.Flags().StringVar(&bpfRoot, "bpf-root", "/sys/fs/bpf", "where BPF maps are pinned (myelin.bpfRoot)")
	addLogFormat(cmd, &logFormat)
	return cmd
}
