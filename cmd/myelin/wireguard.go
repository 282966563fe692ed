package main

import (
	"cmp"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"myelin/encryption"
	"myelin/encryption/userspace"
	"myelin/internal/logs"
)

// wireguardMTU is that of the device until an agent sets it: what is left of 1500 bytes.
const wireguardMTU = 1420

func wireguardCommand() *cobra.Command {
	p := userspace.Params{Version: buildVersion()}
	var logFormat string
	cmd := &cobra.Command{
		Use:   "wireguard",
		Short: "Run WireGuard in a process, for kernels without it",
		Long: "The process encrypts what is sent to a TUN device. The agent starts it where the kernel has no " +
			"WireGuard, and configures it. It goes on without the agent, and ends with its device. When it ends, the " +
			"device stays, so that packets are dropped and not sent in plain text.",
		Args: knownVerb,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if p.Log, err = logs.New(os.Stderr, cmp.Or(logFormat, logs.Text), false, nil); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return userspace.Run(ctx, p)
		},
	}
	cmd.Flags().StringVar(&p.RunDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	cmd.Flags().StringVar(&p.Device, "device", encryption.DeviceName, "name of the TUN device")
	cmd.Flags().IntVar(&p.MTU, "mtu", wireguardMTU, "its MTU, in bytes")
	addLogFormat(cmd, &logFormat)
	cmd.AddCommand(wireguardSuperviseCommand())
	return cmd
}

func wireguardSuperviseCommand() *cobra.Command {
	p := userspace.SuperviseParams{Devices: encryption.DeviceNames()}
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Run WireGuard in processes that outlive the agent's container",
		Long: "The supervisor starts `myelin wireguard` for each device that the agent requests, with " +
			"myelin.wireguard.supervise: false, as the chart has it. It runs in a container of its own, DaemonSet " +
			"myelin-wireguard, because processes that the agent starts end with the agent's container. Where the " +
			"kernel has WireGuard, it starts nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			p.LogFormat = cmp.Or(p.LogFormat, logs.Text)
			if p.Log, err = logs.New(os.Stderr, p.LogFormat, false, nil); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return userspace.Supervise(ctx, p)
		},
	}
	cmd.Flags().StringVar(&p.RunDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	addLogFormat(cmd, &p.LogFormat)
	return cmd
}
