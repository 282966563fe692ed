package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"myelin/chart"
	"myelin/install"
	"myelin/kube"
)

// installFlags are those of install, upgrade and uninstall.
type installFlags struct {
	files, set           []string
	namespace, output    string
	kubeConfig, server   string
	port                 uint16
	apply, wait, migrate bool
	onlyWait             bool
	timeout              time.Duration
}

// installCommands bring Myelin into a cluster and out of it.
func installCommands() []*cobra.Command {
	return []*cobra.Command{installCommand(), upgradeCommand(), uninstallCommand(), pauseCommand()}
}

func (f *installFlags) bind(cmd *cobra.Command, values bool) {
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "kube-system", "namespace of Myelin's objects")
	cmd.Flags().StringVar(&f.kubeConfig, "kubeconfig", "",
		"how to get to the API server (default $KUBECONFIG, ~/.kube/config, or the service account of a pod)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait")
	if values {
		cmd.Flags().StringArrayVarP(&f.files, "values", "f", nil,
			"file of values, as for the Helm chart; several: later ones count")
		cmd.Flags().StringArrayVar(&f.set, "set", nil, "KEY=VALUE, such as ipv6.enabled=true; over the files'")
	}
}

const installLong = "The objects are those of the Helm chart, by the same values."

func installCommand() *cobra.Command {
	f := &installFlags{}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Print or apply the manifests that install Myelin in a cluster",
		Long:  installLong + " Without --apply they are printed, and no server is asked.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.output != "yaml" {
				return fmt.Errorf("-o %s: want yaml", f.output)
			}
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			if !f.apply {
				return printObjects(cmd, o)
			}
			return f.run(cmd, o, false)
		},
	}
	f.bind(cmd, true)
	cmd.Flags().StringVarP(&f.output, "output", "o", "yaml", "yaml")
	cmd.Flags().BoolVar(&f.apply, "apply", false, "apply them to the cluster")
	f.bindApply(cmd)
	return cmd
}

// bindApply adds the flags of what applies objects.
func (f *installFlags) bindApply(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until agents and operators are ready")
	cmd.Flags().BoolVar(&f.migrate, "migrate-from-cilium", false, "go on where Cilium runs")
}

func upgradeCommand() *cobra.Command {
	f := &installFlags{}
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Upgrade Myelin in a cluster to this version and these values",
		Long: installLong + " Values are those of this call alone: what was set before and is not now has its " +
			"default again. Agents restart node by node; what they forward goes on.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			return f.run(cmd, o, true)
		},
	}
	f.bind(cmd, true)
	f.bindApply(cmd)
	return cmd
}

func uninstallCommand() *cobra.Command {
	f := &installFlags{}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove Myelin from a cluster and all of its nodes",
		Long: "Deletes Myelin's objects, runs `myelin cleanup` on each node, and waits for it. A node with pods of " +
			"Myelin's is cleaned when they have ended; " +
			"--set nodeCleanup.force=true cuts them off. Definitions of kinds stay, and users' policies with them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			cluster, err := f.cluster()
			if err != nil {
				return err
			}
			ctx, cancel := f.context(cmd)
			defer cancel()
			if f.onlyWait {
				return install.FinishCleanup(ctx, cluster, o)
			}
			return install.Uninstall(ctx, cluster, o)
		},
	}
	f.bind(cmd, true)
	cmd.Flags().BoolVar(&f.onlyWait, "only-wait", false,
		"wait for the nodes' clean-up and remove the operators' Lease, no more: what the chart's Job does")
	cmd.Flags().StringVar(&f.server, "server", "",
		"where the API server is, in the place of what the credentials say (k8sServiceHost)")
	cmd.Flags().Uint16Var(&f.port, "server-port", 0, "its port (k8sServicePort)")
	return cmd
}

// pauseCommand is for pods whose init containers have done the work.
func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pause", Short: "Do nothing, until a signal", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			<-ctx.Done()
			return nil
		},
	}
}

func (f *installFlags) options(cmd *cobra.Command) (o install.Options, err error) {
	if err := install.CheckNamespace(f.namespace); err != nil {
		return o, fmt.Errorf("--namespace: %w", err)
	}
	values, err := chart.Values(f.files, f.set)
	return install.Options{
		Namespace: f.namespace, Version: chartVersion(), Values: values, MigrateFromCilium: f.migrate,
		Say: func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) },
	}, err
}

// chartVersion is this build's, of which its image has the tag; a build without one leaves the chart's.
func chartVersion() string { return chart.Version(version) }

func printObjects(cmd *cobra.Command, o install.Options) error {
	objects, c, err := install.Render(o)
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		o.Say("note: %s", w.Error())
	}
	for _, object := range objects {
		if !install.IsHook(object) {
			fmt.Fprintf(cmd.OutOrStdout(), "---\n# %s\n%s", object.Template, object.YAML)
		}
	}
	return nil
}

func (f *installFlags) context(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := untilSignal(cmd)
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("not done after %s", f.timeout))
	return ctx, func() { cancel(); stop() }
}

func (f *installFlags) run(cmd *cobra.Command, o install.Options, upgrade bool) error {
	cluster, err := f.cluster()
	if err != nil {
		return err
	}
	ctx, cancel := f.context(cmd)
	defer cancel()
	if upgrade {
		there, err := install.Installed(ctx, cluster, o.Namespace)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("namespace %s has no Myelin to upgrade: myelin install --apply installs it", o.Namespace)
		}
	}
	if err := install.Apply(ctx, cluster, o); err != nil || !f.wait {
		return err
	}
	return install.Wait(ctx, cluster, o)
}

// cluster is that of the kubeconfig file which kubectl would take, or the pod's own.
func (f *installFlags) cluster() (*kube.Objects, error) {
	file := f.kubeConfig
	if file == "" {
		file = os.Getenv("KUBECONFIG")
	}
	if home, err := os.UserHomeDir(); file == "" && err == nil {
		path := filepath.Join(home, ".kube", "config")
		if fileExists(path) {
			file = path
		}
	}
	server, err := kube.NewServer(kube.Options{
		KubeConfig: file, Account: kube.ServiceAccount, Host: f.server, Port: f.port, Env: os.Getenv,
		Agent: "myelin-install/" + version,
	})
	if err != nil {
		return nil, errors.Join(errors.New("no cluster: --kubeconfig says where it is"), err)
	}
	return server.Objects()
}
