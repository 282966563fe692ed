package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"myelin/lab"
)

// exitStatus is the error of a command that has said what it had to: the program only has to end with the status.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func labExecCommand(f *labFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec PLACE -- COMMAND [ARG…]",
		Short: "Run a command in a pod, on a node, or in the world",
		Example: "  myelin lab exec default/client -- ping -c1 10.0.2.2\n  myelin lab exec node1 -- ip route\n  " +
			"myelin lab exec world -- tcpdump -ni eth0",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := f.open(nil)
			if err != nil {
				return err
			}
			place, err := l.Find(args[0])
			if err != nil {
				return err
			}
			if args = args[1:]; args[0] == "--" {
				args = args[1:]
			}
			if len(args) == 0 {
				return errors.New("no command given")
			}
			return runIn(place, args)
		},
	}
	cmd.ValidArgsFunction = completePlace(f, true)
	cmd.Flags().SetInterspersed(false) // flags after PLACE are the command's
	return cmd
}

// runIn runs a command with this one's terminal. An interrupt reaches it from the terminal; this process only waits.
func runIn(place *lab.Place, args []string) error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(interrupts)
	cmd := place.Command(context.Background(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := place.Start(cmd); err != nil {
		return err
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitStatus(128 + int(ws.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

func labApplyCommand(f *labFlags) *cobra.Command {
	var (
		o       lab.ApplyOptions
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "apply -f MANIFESTS…",
		Short: "Create or update objects, and wait for their pods",
		Long: "Prints a line for each object: created, configured, unchanged, or rejected and why, as the nodes' " +
			"agents " +
			"say, which have read it by then. The exit status is 1 if one is rejected.",
		Example: "  myelin lab apply -f examples/policies\n  myelin lab apply -f a.yaml -f b.yaml\n" +
			"  cat a.yaml | myelin lab apply -f -",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Stdin = cmd.InOrStdin()
			o.Each = func(c lab.Change) { fmt.Fprintln(cmd.OutOrStdout(), c) }
			o.Note = func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }
			return f.change(cmd, timeout, func(ctx context.Context, l *lab.Lab) error { return l.ApplyAll(ctx, o) })
		},
	}
	cmd.Flags().StringArrayVarP(&o.Paths, "filename", "f", nil,
		"YAML file or directory, or - for standard input; may be repeated")
	cmd.Flags().BoolVar(&o.Prune, "prune", false, "remove all objects that are not there, Nodes excepted")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for pods")
	_ = cmd.MarkFlagRequired("filename") // fails only for flags that are not there
	return cmd
}

func labDeleteCommand(f *labFlags) *cobra.Command {
	var (
		paths   []string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "delete [POD…] [KIND/NAME…] [-f MANIFESTS…]",
		Short: "Delete pods, other objects, or the objects of manifests, and wait until they are gone",
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(paths) == 0 && len(names) == 0 {
				return errors.New("name a pod, an object as KIND/NAME, or manifests with -f")
			}
			return f.change(cmd, timeout, func(ctx context.Context, l *lab.Lab) error {
				each := func(c lab.Change) { fmt.Fprintln(cmd.OutOrStdout(), c) }
				if len(paths) > 0 {
					if err := l.DeleteAll(ctx, cmd.InOrStdin(), paths, each); err != nil {
						return err
					}
				}
				for _, name := range names {
					change, err := l.DeleteNamed(ctx, name)
					if err != nil {
						return err
					}
					each(change)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil,
		"YAML file or directory, or - for standard input; may be repeated")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for pods")
	return cmd
}

// change opens the lab and calls fn with a bounded context.
func (f *labFlags) change(cmd *cobra.Command, timeout time.Duration, fn func(context.Context, *lab.Lab) error) error {
	l, err := f.open(nil)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return fn(ctx, l)
}

func labAgentCommand(f *labFlags) *cobra.Command {
	var timeout time.Duration
	verbs := map[string]func(context.Context, *lab.Node) error{
		"start":   func(ctx context.Context, n *lab.Node) error { return n.StartAgent(ctx, nil) },
		"stop":    func(ctx context.Context, n *lab.Node) error { return n.StopAgent(ctx) },
		"kill":    func(ctx context.Context, n *lab.Node) error { return n.KillAgent(ctx) },
		"restart": func(ctx context.Context, n *lab.Node) error { return n.RestartAgent(ctx) },
	}
	cmd := &cobra.Command{
		Use:   "agent start|stop|kill|restart NODE",
		Short: "Start or stop the agent of a node; its pods keep running",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			verb, ok := verbs[args[0]]
			if !ok {
				return fmt.Errorf("agent %s: want start, stop, kill or restart", args[0])
			}
			return f.change(cmd, timeout, func(ctx context.Context, l *lab.Lab) error {
				return verb(ctx, l.Node(args[1]))
			})
		},
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string,
		toComplete string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return slices.Sorted(maps.Keys(verbs)), cobra.ShellCompDirectiveNoFileComp
		case 1:
			return completePlace(f, false)(cmd, nil, toComplete)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the agent")
	return cmd
}

// labSuperviseCommand is what `lab up` leaves running.
func labSuperviseCommand(f *labFlags) *cobra.Command {
	return &cobra.Command{
		Use:    "supervise",
		Short:  "Run the pods of a lab; lab up and lab apply start it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := f.open(slog.New(slog.NewTextHandler(os.Stderr, nil)))
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			return l.Supervise(ctx)
		},
	}
}

func parseAddrs(list string) ([]netip.Addr, error) {
	if list == "" {
		return nil, nil
	}
	var addrs []netip.Addr
	for s := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}
