package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"myelin/agent"
	"myelin/config"
	"myelin/doctor"
	"myelin/doctor/check"
)

type doctorFlags struct {
	socket, config string
	output         output
	quiet          bool
}

func doctorCommand() *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check kernel, devices and settings for problems of the node's network",
		Long: "Examines the machine it runs on, with an agent or without one: the kernel and its BPF, mounts, " +
			"devices, MTU, kernel parameters, " +
			"other programs on our hooks, netfilter rules, other cluster networks. Each finding says why it matters " +
			"and what to do. " +
			"Nothing is changed. The exit status is 1 if something has failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	socketFlag(cmd, &f.socket)
	cmd.Flags().StringVar(&f.config, "config", "",
		"the agent's configuration file, if no agent is there to tell what it needs")
	outputFlag(cmd, &f.output, "")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "leave out what is OK")
	return cmd
}

// doctorPatience is how long an agent may take to answer.
const doctorPatience = 5 * time.Second

func (f *doctorFlags) run(cmd *cobra.Command) error {
	c, err := config.Load(f.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), doctorPatience)
	defer cancel()
	o := doctor.Options{Config: c, Proc: "/proc", Sys: "/sys", Checks: agent.Checks()}
	o.Agent, o.AgentError = fetchStatus(ctx, f.socket)
	if o.Agent != nil && f.config == "" {
		if o.Config, err = doctor.FromSettings(o.Agent.Settings); err != nil {
			return err
		}
	}
	findings := append(doctor.Examine(o), tuneFinding(o)...)
	if f.output.structured() {
		err = f.output.write(cmd.OutOrStdout(), findings)
	} else {
		err = doctor.Render(cmd.OutOrStdout(), findings, doctor.Style{
			Width: columns(cmd.OutOrStdout()), Color: colored(cmd.OutOrStdout()), Quiet: f.quiet,
		})
	}
	if err != nil {
		return err
	}
	if doctor.Worst(findings) == check.Fail {
		return exitStatus(1)
	}
	return nil
}
