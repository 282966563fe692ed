package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"myelin/config"
	"myelin/install/host"
)

// hostCommands are those that change a node's files and kernel, and need no agent.
func hostCommands() []*cobra.Command {
	return []*cobra.Command{installCNICommand(), mountCommand(), cleanupCommand()}
}

func installCNICommand() *cobra.Command {
	var from, dir string
	cmd := &cobra.Command{
		Use:   "install-cni",
		Short: "Copy the CNI plugin to the directory of the container runtime",
		Long: "Replaces the file as one step. The configuration that names the plugin is written by the agent, when " +
			"it is ready.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed, err := host.InstallPlugin(from, dir)
			if err != nil {
				return err
			}
			said := "is there already"
			if changed {
				said = "is installed"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the CNI plugin %s, in %s\n", said, dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "/myelin-cni", "the plugin's file, as in the image")
	cmd.Flags().StringVar(&dir, "bin-dir", config.Default().CNI.BinPath, "directory of plugins (cni.binPath)")
	return cmd
}

// hostProcHelp is of the flag that sends a container to its node.
const hostProcHelp = "the node's /proc, in a container: work among the files of its process 1"

func mountCommand() *cobra.Command {
	var proc, bpf, cgroup string
	cmd := &cobra.Command{
		Use:   "mount",
		Short: "Mount the BPF file system and the cgroup v2 hierarchy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if proc != "" {
				return among(host.Enter(proc, []string{"mount", "--bpf", bpf, "--cgroup", cgroup}))
			}
			done, err := host.Mount(bpf, cgroup)
			for _, what := range done {
				fmt.Fprintln(cmd.OutOrStdout(), what)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&proc, "host-proc", "", hostProcHelp)
	cmd.Flags().StringVar(&bpf, "bpf", config.Default().Myelin.BPFRoot,
		"where to mount a BPF file system, if there is none; empty: nowhere")
	cmd.Flags().StringVar(&cgroup, "cgroup", "",
		"where to mount version 2 of control groups, if it is not there; empty: nowhere")
	return cmd
}

type cleanupFlags struct {
	config, proc             string
	force, kubeProxy, cilium bool
	patience                 time.Duration

	runDir, bpfRoot, confDir, binDir string
}

func cleanupCommand() *cobra.Command {
	f := &cleanupFlags{}
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that agents have left on this node",
		Long: "Removes the CNI configuration and plugin first, then programs, maps, routes, neighbours, addresses, " +
			"devices and files, and sets kernel parameters back " +
			"to what they were. It refuses while an agent runs. While pods run, what forwards for them stays, and " +
			"the exit status is 1.",
		Args:    cobra.NoArgs,
		PreRunE: needsRoot("the kernel's routes, devices, maps and files of the node"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.config, "config", "", "the agent's configuration file, for the paths below")
	cmd.Flags().StringVar(&f.runDir, "run-dir", "", "the agent's run directory (myelin.runDir)")
	cmd.Flags().StringVar(&f.bpfRoot, "bpf-root", "", "BPF file system (myelin.bpfRoot)")
	cmd.Flags().StringVar(&f.confDir, "cni-conf-dir", "", "directory of CNI configurations (cni.confPath)")
	cmd.Flags().StringVar(&f.binDir, "cni-bin-dir", "", "directory of CNI plugins (cni.binPath)")
	cmd.Flags().StringVar(&f.proc, "host-proc", "", hostProcHelp)
	cmd.Flags().BoolVar(&f.force, "force", false, "cut off pods that run still")
	cmd.Flags().DurationVar(&f.patience, "patience", 0, "how long to wait for pods to end")
	cmd.Flags().BoolVar(&f.kubeProxy, "kube-proxy", false,
		"remove instead what kube-proxy has left, by the node's own tools")
	cmd.Flags().BoolVar(&f.cilium, "cilium", false,
		"remove instead what Cilium has left, when neither its agent nor pods of it run; --bpf-root, --cni-conf-dir, "+
			"--cni-bin-dir, --force and --patience hold for it, too")
	cmd.MarkFlagsMutuallyExclusive("kube-proxy", "cilium")
	return cmd
}

func (f *cleanupFlags) run(cmd *cobra.Command) error {
	say := func(format string, args ...any) { fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...) }
	if f.kubeProxy {
		if f.proc != "" {
			return among(host.Enter(f.proc, []string{"cleanup", "--kube-proxy"}))
		}
		return host.CleanKubeProxy(cmd.Context(), say)
	}
	o, err := f.options()
	if err != nil {
		return err
	}
	if f.proc != "" {
		return among(host.Enter(f.proc, []string{
			"cleanup", "--run-dir", o.RunDir, "--bpf-root", o.BPFRoot, "--cni-conf-dir", o.ConfPath, "--cni-bin-dir",
			o.BinPath,
			"--patience", o.Patience.String(), fmt.Sprintf("--force=%v", o.Force), fmt.Sprintf("--cilium=%v", f.cilium),
		}))
	}
	o.Say = say
	ctx, stop := untilSignal(cmd)
	defer stop()
	if f.cilium {
		c := host.DefaultCilium()
		c.BPFRoot, c.ConfPath, c.BinPath, c.Force, c.Patience, c.Say = o.BPFRoot, o.ConfPath, o.BinPath, o.Force,
			o.Patience, say
		return host.CleanCilium(ctx, c)
	}
	return host.Clean(ctx, o)
}

// options are those of the configuration, and of flags over them.
func (f *cleanupFlags) options() (o host.Options, err error) {
	c, err := config.Load(f.config)
	if err != nil {
		return o, err
	}
	o = host.Options{
		RunDir: c.Myelin.RunDir, BPFRoot: c.Myelin.BPFRoot, ConfPath: c.CNI.ConfPath, BinPath: c.CNI.BinPath,
		SysctlRoot: "/proc/sys",
		Force:      f.force, Patience: f.patience,
	}
	for _, one := range []struct {
		to   *string
		flag string
	}{{&o.RunDir, f.runDir}, {&o.BPFRoot, f.bpfRoot}, {&o.ConfPath, f.confDir}, {&o.BinPath, f.binDir}} {
		if one.flag != "" {
			*one.to = one.flag
		}
	}
	return o, nil
}

// among is what a command has come to that ran among the host's files: it has said so itself.
func among(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitStatus(max(exit.ExitCode(), 1))
	}
	return err
}
