//go:build ignore

// Command helm does of Helm what the cluster's tests ask for, by Helm's library, as helm itself does: it parses the
// same flags, and waits the same way. build.sh builds it with the tree's own versions of what both import, of which
// nothing is compiled twice. It is no part of the tree's module, which has no need of the rest.
//
//	helm [--namespace NAMESPACE] install|upgrade NAME CHART [--values FILE] [--set KEY=VALUE]...
//	    [--wait] [--timeout 9s]
//	helm [--namespace NAMESPACE] uninstall NAME [--wait] [--timeout 90s]
package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/cli/values"
	"helm.sh/helm/v3/pkg/getter"
)

// flags are those of all commands.
type flags struct {
	values  values.Options
	wait    bool
	timeout time.Duration
}

// command makes one of so many arguments; with two there is a chart, which takes values.
func (f *flags) command(name string, arguments int, run func(args []string) error) *cobra.Command {
	c := &cobra.Command{Use: name, Args: cobra.ExactArgs(arguments), RunE: func(_ *cobra.Command, args []string) error {
		return run(args)
	}}
	c.Flags().BoolVar(&f.wait, "wait", false, "")
	c.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "")
	if arguments == 2 {
		c.Flags().StringSliceVarP(&f.values.ValueFiles, "values", "f", nil, "")
		c.Flags().StringArrayVar(&f.values.Values, "set", nil, "")
	}
	return c
}

// load reads a chart and the values that it is given.
func (f *flags) load(path string, settings *cli.EnvSettings) (*chart.Chart, map[string]any, error) {
	c, err := loader.Load(path)
	if err != nil {
		return nil, nil, err
	}
	v, err := f.values.MergeValues(getter.All(settings))
	return c, v, err
}

func main() {
	settings, config, f := cli.New(), &action.Configuration{}, &flags{}
	root := &cobra.Command{
		Use: "helm", SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			silent := func(string, ...any) {}
			return config.Init(settings.RESTClientGetter(), settings.Namespace(), os.Getenv("HELM_DRIVER"), silent)
		},
	}
	settings.AddFlags(root.PersistentFlags())
	root.AddCommand(
		f.command("install", 2, func(args []string) error { return f.install(config, settings, args[0], args[1]) }),
		f.command("upgrade", 2, func(args []string) error { return f.upgrade(config, settings, args[0], args[1]) }),
		f.command("uninstall", 1, func(args []string) error {
			u := action.NewUninstall(config)
			u.Wait, u.Timeout = f.wait, f.timeout
			_, err := u.Run(args[0])
			return err
		}),
	)
	if err := root.ExecuteContext(context.Background()); err != nil {
		os.Exit(1) // cobra has printed it
	}
}

func (f *flags) install(config *action.Configuration, settings *cli.EnvSettings, name, path string) error {
	c, v, err := f.load(path, settings)
	if err != nil {
		return err
	}
	i := action.NewInstall(config)
	i.ReleaseName, i.Namespace, i.Wait, i.Timeout = name, settings.Namespace(), f.wait, f.timeout
	_, err = i.Run(c, v)
	return err
}

func (f *flags) upgrade(config *action.Configuration, settings *cli.EnvSettings, name, path string) error {
	c, v, err := f.load(path, settings)
	if err != nil {
		return err
	}
	u := action.NewUpgrade(config)
	u.Namespace, u.Wait, u.Timeout = settings.Namespace(), f.wait, f.timeout
	_, err = u.Run(name, c, v)
	return err
}
