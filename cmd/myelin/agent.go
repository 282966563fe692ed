package main

import (
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"myelin/agent"
	"myelin/config"
	"myelin/internal/logs"
)

// nodeNameEnv has the node's name in a DaemonSet, from spec.nodeName of the pod.
const nodeNameEnv = "K8S_NODE_NAME"

// logFormatFlag is the flag of myelin.logFormat.
const logFormatFlag = "--log-format"

// recentLog is how much of its log the agent keeps for `myelin table show log`, in bytes.
const recentLog = 256 << 10

// addLogFormat adds --log-format to the command of a process that runs for a long time.
func addLogFormat(cmd *cobra.Command, format *string) {
	name := strings.TrimPrefix(logFormatFlag, "--")
	cmd.Flags().StringVar(format, name, "", "text or json (myelin.logFormat)")
	// It fails only for flags that are not there.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions([]string{logs.Text, logs.JSON},
		cobra.ShellCompDirectiveNoFileComp))
}

func agentCommand() *cobra.Command {
	var file, kubeConfig, nodeName, logFormat string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the node's agent",
		Long: "The agent makes the node's kernel equal to the tables: it loads and attaches the datapath, serves CNI " +
			"and the API, and watches the cluster's objects. " +
			"What it set up goes on forwarding when it ends.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file,
				config.Flag{Name: "--kubeconfig", Key: "kubeConfigPath", Value: kubeConfig},
				config.Flag{Name: "--node-name", Key: "myelin.nodeName", Value: nodeName},
				config.Flag{Name: logFormatFlag, Key: "myelin.logFormat", Value: logFormat},
				config.Flag{Name: nodeNameEnv, Key: "myelin.nodeName", Value: os.Getenv(nodeNameEnv), Weak: true})
			if err != nil {
				return err
			}
			recent := &logs.Recent{Bytes: recentLog}
			log, err := logs.New(os.Stderr, c.Myelin.LogFormat, c.Debug, recent)
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				log.Warn(w.Error())
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return agent.Run(ctx, c, buildVersion(), log, recent)
		},
	}
	cmd.Flags().StringVar(&kubeConfig, "kubeconfig", "",
		"how to get to the API server to read the cluster from (kubeConfigPath)")
	cmd.Flags().StringVar(&nodeName, "node-name", "",
		"name of this node's object (myelin.nodeName); else the file's, "+nodeNameEnv+", or the host name")
	addLogFormat(cmd, &logFormat)
	cmd.Flags().StringVar(&file, "config", "", "configuration file; keys as Cilium's Helm values")
	return cmd
}
