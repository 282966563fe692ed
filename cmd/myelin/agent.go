package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"myelin/agent"
	"myelin/config"
)

// nodeNameEnv has the node's name in a DaemonSet, from spec.nodeName of the pod.
const nodeNameEnv = "K8S_NODE_NAME"

func agentCommand() *cobra.Command {
	var file, kubeConfig, nodeName string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the node's agent",
		Long: "The agent makes the node's kernel equal to the tables: it loads and attaches the datapath, serves CNI and the API, and watches the cluster's objects. " +
			"What it set up goes on forwarding when it ends.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file,
				config.Flag{Name: "--kubeconfig", Key: "kubeConfigPath", Value: kubeConfig},
				config.Flag{Name: "--node-name", Key: "myelin.nodeName", Value: nodeName},
				config.Flag{Name: nodeNameEnv, Key: "myelin.nodeName", Value: os.Getenv(nodeNameEnv), Weak: true})
			if err != nil {
				return err
			}
			level := slog.LevelInfo
			if c.Debug {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			for _, w := range c.Warnings {
				log.Warn(w.Error())
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return agent.Run(ctx, c, version, log)
		},
	}
	cmd.Flags().StringVar(&kubeConfig, "kubeconfig", "", "how to get to the API server to read the cluster from (kubeConfigPath)")
	cmd.Flags().StringVar(&nodeName, "node-name", "", "name of this node's object (myelin.nodeName); else the file's, "+nodeNameEnv+", or the host name")
	cmd.Flags().StringVar(&file, "config", "", "configuration file; keys as Cilium's Helm values")
	return cmd
}
