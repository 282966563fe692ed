package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"myelin/connectivity"
)

// connectivityCommand is `myelin connectivity`.
func connectivityCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "connectivity", Short: "Test the network of a Kubernetes cluster from within"}
	cmd.AddCommand((&connectivityFlags{}).command(), probeCommand(), captureCommand())
	return cmd
}

// connectivityFlags are those of `myelin connectivity test`.
type connectivityFlags struct {
	connectivity.Options

	test, skip string
	output     output
	list       bool
}

func (f *connectivityFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Deploy pods, Services and policies, and test connectivity between them",
		Long: "Deploys pods on two nodes, in two namespaces of its own, and Services, has the pods and nodes ask " +
			"each other, one small request after the other, applies policies and deletes them again, and says what " +
			"failed: " +
			"what was expected, what happened, and what the agents of both ends say of it. It removes what it made, " +
			"also when it is interrupted. " +
			"The pods run the product's own image. It needs a Kubernetes API server, which a lab has not. The exit " +
			"status is 1 where a test failed.",
		Example: "  myelin connectivity test\n  myelin connectivity test --test '^policy/' -o json\n  myelin " +
			"connectivity test --external-target http://192.0.2.80:8080/",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.KubeConfig, "kubeconfig", "", "kubeconfig file (default what kubectl takes)")
	flags.StringVar(&f.Context, "context", "", "of the kubeconfig (default its current one)")
	flags.StringVar(&f.Image, "image", "", "image of the pods (default that of the DaemonSet, else myelin:VERSION)")
	flags.StringVar(&f.AgentNamespace, "agent-namespace", "kube-system", "where DaemonSet myelin is")
	flags.StringSliceVar(&f.Nodes, "nodes", nil, "one or two nodes (default the first two that are ready)")
	flags.StringVar(&f.test, "test", "", "regular expression: the tests to run (default all)")
	flags.StringVar(&f.skip, "skip", "", "regular expression: tests to leave out")
	flags.StringVar(&f.ExternalTarget, "external-target", "",
		"URL outside of the cluster for pods to ask, http, tcp or icmp (default none)")
	flags.StringVar(&f.Domain, "cluster-domain", "cluster.local", "what names of the cluster end with")
	flags.BoolVar(&f.Keep, "keep", false, "leave all there at the end")
	flags.BoolVar(&f.list, "list", false, "list the tests, and run none")
	outputFlag(cmd, &f.output, "; progress goes to the standard error then")
	return cmd
}

func (f *connectivityFlags) run(cmd *cobra.Command) error {
	var err error
	if f.Test, err = pattern("--test", f.test); err != nil {
		return err
	}
	if f.Skip, err = pattern("--skip", f.skip); err != nil {
		return err
	}
	if f.list {
		return connectivity.List(cmd.OutOrStdout(), f.Options)
	}
	f.DefaultImage = "myelin:" + cmp.Or(chartVersion(), "latest")
	ctx, stop := untilSignal(cmd)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // it would end us before all is removed
	f.Progress = heard{cmd.OutOrStdout(), stop}
	if f.output.structured() {
		f.Progress = heard{cmd.ErrOrStderr(), stop}
	}
	report, err := connectivity.Test(ctx, f.Options)
	if report != nil && f.output.structured() {
		err = cmp.Or(err, f.output.write(cmd.OutOrStdout(), report))
	}
	switch {
	case err != nil:
		return err
	case report.Interrupted:
		return errors.New("interrupted")
	case report.Failed > 0:
		return exitStatus(1)
	}
	return nil
}

// heard stops the tests when their output is not read any more.
type heard struct {
	io.Writer

	stop func()
}

// Write implements io.Writer.
func (h heard) Write(p []byte) (int, error) {
	n, err := h.Writer.Write(p)
	if err != nil {
		h.stop()
	}
	return n, err
}

// pattern compiles a flag; empty: nil.
func pattern(flag, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return re, nil
}

// probeCommand is what the test's pods are told to do.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "probe JSON",
		Short:  "Try what a JSON list says, and print what came of it: the tests' pods do this",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			var probes []connectivity.Probe
			if err := json.Unmarshal([]byte(args[0]), &probes); err != nil {
				return fmt.Errorf("read the probes: %w", err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(connectivity.Run(cmd.Context(), probes))
		},
	}
}

// captureCommand is what the test's pods on the network of their nodes are told to do.
func captureCommand() *cobra.Command {
	var devices, texts []string
	cmd := &cobra.Command{
		Use:    "capture",
		Short:  "Count the frames of devices that have a text, until a line is read: the tests' pods do this",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return connectivity.Capture(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), devices, texts)
		},
	}
	cmd.Flags().StringArrayVar(&devices, "device", nil, "device to capture; may be repeated")
	cmd.Flags().StringArrayVar(&texts, "text", nil, "text to look for; may be repeated")
	return cmd
}
