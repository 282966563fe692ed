package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"myelin/lab"
)

// labFlags are common to all lab commands.
type labFlags struct {
	name, dir string
}

// labCommand is `myelin lab`: clusters of network namespaces on this machine.
func labCommand() *cobra.Command {
	f := &labFlags{}
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run clusters of network namespaces on this machine, from Kubernetes YAML",
		Args:  cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVarP(&f.name, "name", "n", "lab", "the lab's name")
	_ = cmd.RegisterFlagCompletionFunc("name", completeLab(f))
	cmd.PersistentFlags().StringVar(&f.dir, "dir", lab.DefaultDir, "directory that holds the labs' state")
	for _, verb := range []*cobra.Command{
		labUpCommand(f), labDownCommand(f), labStatusCommand(f), labExecCommand(f), labApplyCommand(f),
		labDeleteCommand(f),
		labAgentCommand(f), labSuperviseCommand(f), labGetCommand(f), labDescribeCommand(f), labLogsCommand(f),
	} {
		verb.PreRunE = needsRoot("network namespaces and the agents' sockets")
		cmd.AddCommand(verb)
	}
	cmd.AddCommand(labListCommand(f), serveCommand(), callCommand())
	return cmd
}

func (f *labFlags) open(log *slog.Logger) (*lab.Lab, error) { return lab.Open(f.dir, f.name, log) }

// untilSignal ends when the command is interrupted, so that a lab half built is removed.
func untilSignal(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
}

func labUpCommand(f *labFlags) *cobra.Command {
	var (
		opts               lab.Options
		files, set         []string
		conflist, outside  string
		services           []string
		noAgent, quietLine bool
	)
	cmd := &cobra.Command{
		Use:   "up -f MANIFESTS…",
		Short: "Create nodes, start their agents and pods, and wait until all run",
		Example: "  myelin lab up -f examples/two-nodes\n  myelin lab up -n wide -f examples/two-nodes --set " +
			"routingMode=tunnel --mtu 9000",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Name, opts.Dir, opts.Stdin = f.name, f.dir, cmd.InOrStdin()
			if !quietLine {
				opts.Progress = progressTo(cmd.OutOrStdout())
			}
			if err := fillUp(&opts, noAgent, conflist, outside, set); err != nil {
				return err
			}
			if err := serviceCIDRs(&opts, services); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			opts.Manifests, opts.More = files[0], files[1:]
			l, err := lab.Up(ctx, opts)
			if err != nil {
				return err
			}
			return f.upDone(ctx, cmd, l, quietLine)
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVarP(&files, "filename", "f", nil,
		"YAML file or directory: Nodes, Namespaces, Pods, …; - for standard input; may be repeated")
	fs.StringSliceVar(&services, "service-cidr", nil,
		"what Services get addresses from, one range a family, the preferred one first "+
			"(default 10.96.0.0/16,fd00:10:96::/112)")
	addClusterFlags(cmd, &opts)
	fs.StringArrayVar(&set, "set", nil, "KEY=VALUE that goes over the configuration, e.g. routingMode=tunnel")
	fs.StringVar(&opts.CNIPlugin, "cni-plugin", "", "CNI plugin (default myelin-cni beside this program)")
	fs.BoolVar(&noAgent, "no-agent", false, "start no agents")
	fs.StringVar(&conflist, "conflist", "", "CNI configuration list for nodes without an agent")
	fs.StringVar(&outside, "outside", "", "addresses of the world off the fabric, with commas between")
	fs.BoolVarP(&quietLine, "quiet", "q", false, "print nothing")
	_ = cmd.MarkFlagRequired("filename") // fails only for flags that are not there
	return cmd
}

// addClusterFlags adds those that are options of the lab as they are.
func addClusterFlags(cmd *cobra.Command, opts *lab.Options) {
	fs := cmd.Flags()
	fs.StringVar(&opts.Config, "config", "",
		"configuration that all agents get; the lab adds what makes it a node's own")
	fs.StringVar(&opts.Fabric, "fabric", lab.FabricBridge, "bridge, or wire: one veth between two nodes, no world")
	fs.StringVar(&opts.Underlay, "underlay", lab.UnderlayDual, "which node addresses to use: dual, ipv4 or ipv6")
	fs.StringVar(&opts.Images, "images", lab.ImagesServe,
		"what containers without a command do: serve (a server stands in for their images) or none")
	fs.IntVar(&opts.MTU, "mtu", 1500, "MTU of the fabric in bytes")
	fs.DurationVar(&opts.Timeout, "timeout", time.Minute, "how long to wait for agents and pods")
	fs.BoolVar(&opts.KeepOnFailure, "keep", false, "leave a lab that did not come up as it is")
}

// upDone draws the lab, unless quiet, and says what does not run in it: then the command fails, and the lab stays up.
func (f *labFlags) upDone(ctx context.Context, cmd *cobra.Command, l *lab.Lab, quiet bool) error {
	troubles, err := l.Troubles(ctx)
	if err != nil {
		return err
	}
	if !quiet {
		if err := drawLab(l, cmd.OutOrStdout()); err != nil {
			return err
		}
		lines, err := l.StandIns()
		if err != nil {
			return err
		}
		for _, line := range lines {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
	}
	for _, t := range troubles {
		fmt.Fprintln(cmd.ErrOrStderr(), t)
	}
	if len(troubles) > 0 {
		return fmt.Errorf("lab %s is up, but not all of it works", f.name)
	}
	return nil
}

// fillUp completes the options from flags that need work.
func fillUp(opts *lab.Options, noAgent bool, conflist, outside string, set []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	opts.Binary = self
	if opts.CNIPlugin == "" {
		if plugin := filepath.Join(filepath.Dir(self), "myelin-cni"); fileExists(plugin) {
			opts.CNIPlugin = plugin
		}
	}
	if !noAgent {
		opts.Agent = self
	}
	if conflist != "" {
		if opts.Conflist, err = os.ReadFile(conflist); err != nil {
			return err
		}
	}
	if opts.Outside, err = parseAddrs(outside); err != nil {
		return fmt.Errorf("--outside: %w", err)
	}
	opts.Values, err = parseSet(set)
	return err
}

// serviceCIDRs reads the ranges of Services.
func serviceCIDRs(opts *lab.Options, texts []string) error {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--service-cidr: %w", err)
		}
		opts.ServiceCIDRs = append(opts.ServiceCIDRs, p)
	}
	return nil
}

// parseSet reads KEY=VALUE as Helm's --set does: true, false and numbers are that, {a,b} is a list.
func parseSet(set []string) (map[string]any, error) {
	values := map[string]any{}
	for _, s := range set {
		key, text, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--set %s: want KEY=VALUE", s)
		}
		number, err := strconv.Atoi(text)
		switch {
		case text == "true" || text == "false":
			values[key] = text == "true"
		case err == nil:
			values[key] = number
		case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}"):
			values[key] = strings.Split(text[1:len(text)-1], ",")
		default:
			values[key] = text
		}
	}
	return values, nil
}

func progressTo(w io.Writer) func(string) {
	begin := time.Now()
	return func(line string) { fmt.Fprintf(w, "%6.2fs  %s\n", time.Since(begin).Seconds(), line) }
}

func labDownCommand(f *labFlags) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab, in whatever state it is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			names := []string{f.name}
			if all {
				var err error
				if names, err = lab.List(f.dir); err != nil {
					return err
				}
			}
			for _, name := range names {
				if err := lab.Down(ctx, f.dir, name, nil); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all labs of the directory, and those that lost theirs")
	return cmd
}

func labListCommand(f *labFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List labs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := lab.List(f.dir)
			for _, n := range names {
				fmt.Fprintln(cmd.OutOrStdout(), n)
			}
			return err
		},
	}
}

func labStatusCommand(f *labFlags) *cobra.Command {
	var output output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, pods and the fabric, with their state",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := f.open(nil)
			if err != nil {
				return err
			}
			if !output.structured() {
				return drawLab(l, cmd.OutOrStdout())
			}
			st, err := l.Status()
			if err != nil {
				return err
			}
			return output.write(cmd.OutOrStdout(), st)
		},
	}
	outputFlag(cmd, &output, "")
	return cmd
}

func drawLab(l *lab.Lab, w io.Writer) error {
	st, err := l.Status()
	if err != nil {
		return err
	}
	return st.Draw(w, columns(w))
}

// columns is the width of the terminal, or what COLUMNS says, or 100.
func columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 100
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
