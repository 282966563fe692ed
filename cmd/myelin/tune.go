package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"myelin/config"
	"myelin/doctor"
	"myelin/doctor/check"
	"myelin/tune"
)

type tuneFlags struct {
	socket, config, profile, undo string
	output                        output
	apply, revert, all            bool
}

func tuneCommand() *cobra.Command {
	f := &tuneFlags{}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Compare settings of the machine with those that suit the network, and apply them",
		Long: "Lists settings of CPUs, interrupts, queues, network cards and TCP: what they are, what is " +
			"recommended, why, what that brings, and the commands that set and restore them. Nothing is changed " +
			"without --apply or --revert. What was there before is kept in a file of the run directory, which a " +
			"reboot removes as it does the settings.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	socketFlag(cmd, &f.socket)
	cmd.Flags().StringVar(&f.config, "config", "",
		"the agent's configuration file, if no agent is there to tell which devices lead to other nodes")
	cmd.Flags().StringVar(&f.profile, "profile", string(tune.Throughput), strings.Join(tune.Profiles(), " or "))
	_ = cmd.RegisterFlagCompletionFunc("profile",
		cobra.FixedCompletions(tune.Profiles(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&f.undo, "undo-file", "",
		"where to keep what was there before (default "+tune.UndoFile+" in the run directory)")
	cmd.Flags().BoolVar(&f.apply, "apply", false, "write what is recommended")
	cmd.Flags().BoolVar(&f.revert, "revert", false, "restore what was there before the first --apply")
	cmd.Flags().BoolVarP(&f.all, "all", "a", false, "list settings that are as recommended, too")
	cmd.MarkFlagsMutuallyExclusive("apply", "revert")
	outputFlag(cmd, &f.output, "")
	return cmd
}

func (f *tuneFlags) run(cmd *cobra.Command) error {
	if !slices.Contains(tune.Profiles(), f.profile) {
		return fmt.Errorf("no profile %q: want %s", f.profile, strings.Join(tune.Profiles(), " or "))
	}
	c, err := config.Load(f.config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), doctorPatience)
	defer cancel()
	o := doctor.Options{Config: c, Proc: "/proc", Sys: "/sys"}
	o.Agent, o.AgentError = fetchStatus(ctx, f.socket)
	if o.Agent != nil && f.config == "" {
		if o.Config, err = doctor.FromSettings(o.Agent.Settings); err != nil {
			return err
		}
	}
	if f.undo == "" {
		f.undo = filepath.Join(o.Config.Myelin.RunDir, tune.UndoFile)
	}
	if f.revert {
		return f.restore(cmd.OutOrStdout(), &tune.Machine{Root: "/", Devices: tune.Cards{}})
	}
	m, err := tunedMachine(o)
	if err != nil {
		return err
	}
	entries := tune.List(m, tune.Profile(f.profile))
	if f.apply {
		return f.write(cmd.OutOrStdout(), m, entries)
	}
	if f.output.structured() {
		return f.output.write(cmd.OutOrStdout(), entries)
	}
	return tune.Render(cmd.OutOrStdout(), entries, columns(cmd.OutOrStdout()), f.all)
}

func tunedMachine(o doctor.Options) (*tune.Machine, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's version: %w", err)
	}
	wires, err := doctor.Wires(o)
	return &tune.Machine{Root: "/", Wires: wires, Devices: tune.Cards{},
		Release: unix.ByteSliceToString(u.Release[:])}, err
}

// tuneFinding is what `myelin doctor` says of settings that could be tuned; nothing if all are as recommended, or can't
// be read.
func tuneFinding(o doctor.Options) []check.Finding {
	m, err := tunedMachine(o)
	if err != nil {
		return nil
	}
	differ := 0
	for _, e := range tune.List(m, tune.Throughput) {
		if e.Differs() {
			differ++
		}
	}
	if differ == 0 {
		return nil
	}
	return []check.Finding{{
		Area: "tune", Level: check.Info, What: fmt.Sprintf("%d settings are not as recommended for throughput", differ),
		Why: "packets cost more CPU time than they have to", Do: "see `myelin tune`",
	}}
}

// write applies the entries, and says which.
func (f *tuneFlags) write(w io.Writer, m *tune.Machine, entries []tune.Entry) error {
	written, err := tune.Apply(m, entries, f.undo)
	if f.output.structured() {
		return errors.Join(err, f.output.write(w, written))
	}
	for _, e := range written {
		fmt.Fprintf(w, "%s = %s (was %s)\n", e.Key, e.Recommended, e.Current)
	}
	fmt.Fprintf(w, "%d settings written; `myelin tune --revert` restores what was there\n", len(written))
	return err
}

// restore reverts what was applied, and says what it left.
func (f *tuneFlags) restore(w io.Writer, m *tune.Machine) error {
	restored, left, err := tune.Revert(m, f.undo)
	if f.output.structured() {
		return errors.Join(err, f.output.write(w, map[string][]string{"restored": restored, "left": left}))
	}
	for _, text := range restored {
		fmt.Fprintln(w, text)
	}
	for _, text := range left {
		fmt.Fprintln(w, "left as it is: "+text)
	}
	fmt.Fprintf(w, "%d settings restored, %d left\n", len(restored), len(left))
	return err
}
