package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"myelin/lab"
	"myelin/lab/show"
)

// queryFlags say which objects a command is for.
type queryFlags struct{ namespace, selector string }

func (q *queryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.namespace, "namespace", "", "objects of this namespace alone")
	cmd.Flags().StringVarP(&q.selector, "selector", "l", "", "objects with these labels alone, e.g. app=web,tier!=db")
}

// queries reads KIND [NAME…], KIND,KIND and KIND/NAME….
func (q *queryFlags) queries(args []string) ([]lab.Query, error) {
	selector := labels.Everything()
	if q.selector != "" {
		var err error
		if selector, err = labels.Parse(q.selector); err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
	}
	query := func(kind string, names ...string) lab.Query {
		return lab.Query{Resource: kind, Names: names, Namespace: q.namespace, Selector: selector}
	}
	var all []lab.Query
	if kind, _, ok := strings.Cut(args[0], "/"); ok && lab.IsResource(kind) {
		for _, arg := range args {
			kind, name, ok := strings.Cut(arg, "/")
			if !ok || !lab.IsResource(kind) {
				return nil, fmt.Errorf("%s: want KIND/NAME, as the first one is", arg)
			}
			all = append(all, query(kind, name))
		}
		return all, nil
	}
	kinds := strings.Split(args[0], ",")
	if len(kinds) > 1 && len(args) > 1 {
		return nil, errors.New("names can be given for one kind alone")
	}
	for _, kind := range kinds {
		all = append(all, query(kind, args[1:]...))
	}
	return all, nil
}

// labOutputs are the formats of lab get: kubectl's.
const labOutputs = "wide, name, yaml, json or " + outputJSONPath + "=TEMPLATE"

type labGetFlags struct {
	*labFlags
	query           queryFlags
	show            show.Options
	format          output // of jsonpath alone
	allSpace, watch bool
}

func labGetCommand(f *labFlags) *cobra.Command {
	g := &labGetFlags{labFlags: f}
	cmd := &cobra.Command{
		Use:   "get KIND[,KIND…] [NAME…] | KIND/NAME…",
		Short: "Show objects with their status, in kubectl's columns",
		Long: "" +
			"Kinds have kubectl's names: pods, services, deployments, replicasets, statefulsets, daemonsets, jobs,\n" +
			"nodes, namespaces, endpointslices, networkpolicies, ciliumnetworkpolicies, …, all, and their short " +
			"names.\n" +
			"Objects of all namespaces are shown, with a column NAMESPACE unless all are in \"default\".",
		Example: "  myelin lab get pods -o wide\n  myelin lab get deploy,svc\n  myelin lab get pod/web -o yaml\n" +
			"  myelin lab get pods -o jsonpath='{.items[*].status.podIP}'",
		Args: cobra.MinimumNArgs(1),
		RunE: g.run,
	}
	g.query.add(cmd)
	cmd.Flags().StringVarP(&g.show.Output, "output", "o", "", labOutputs)
	cmd.Flags().BoolVarP(&g.allSpace, "all-namespaces", "A", false, "show the column NAMESPACE in any case")
	cmd.Flags().BoolVar(&g.show.ShowLabels, "show-labels", false, "show the column LABELS")
	cmd.Flags().BoolVar(&g.show.NoHeaders, "no-headers", false, "leave the headings out")
	cmd.Flags().BoolVarP(&g.watch, "watch", "w", false, "show them again every second")
	return cmd
}

func (g *labGetFlags) run(cmd *cobra.Command, args []string) error {
	if err := g.parseOutput(); err != nil {
		return err
	}
	queries, err := g.query.queries(args)
	if err != nil {
		return err
	}
	l, err := g.open(nil)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	g.show.NoNamespaces = g.query.namespace != ""
	for {
		if err := g.write(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), l, queries); err != nil || !g.watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
			fmt.Fprintln(cmd.OutOrStdout())
		}
	}
}

// parseOutput reads -o. A template is applied to what JSON has.
func (g *labGetFlags) parseOutput() error {
	text := g.show.Output
	if format, _, _ := strings.Cut(text, "="); format == outputJSONPath {
		if err := g.format.Set(text); err != nil {
			return fmt.Errorf("-o %s: %w", text, err)
		}
		g.show.Output = outputJSON
		return nil
	}
	if !slices.Contains(show.Outputs(), text) {
		return fmt.Errorf("-o %s: want %s", text, labOutputs)
	}
	return nil
}

func (g *labGetFlags) write(ctx context.Context, out, notes io.Writer, l *lab.Lab, queries []lab.Query) error {
	if g.format.format != outputJSONPath {
		return getAll(ctx, out, notes, l, queries, g.show, g.allSpace)
	}
	var b bytes.Buffer
	if err := getAll(ctx, &b, notes, l, queries, g.show, g.allSpace); err != nil {
		return err
	}
	return g.format.writeJSON(out, b.Bytes())
}

func getAll(
	ctx context.Context,
	out, notes io.Writer,
	l *lab.Lab,
	queries []lab.Query,
	o show.Options,
	namespaces bool,
) error {
	var items []show.Item
	one := len(queries) == 1 && len(queries[0].Names) == 1
	for _, q := range queries {
		of, err := l.Get(ctx, q)
		if err != nil {
			return err
		}
		items = append(items, of...)
	}
	if len(items) == 0 && o.Output != "yaml" && o.Output != "json" {
		fmt.Fprintln(notes, "No resources found")
		return nil
	}
	elsewhere := slices.ContainsFunc(
		items,
		func(i show.Item) bool { return i.Namespace != "" && i.Namespace != "default" },
	)
	o.NoNamespaces = !namespaces && (o.NoNamespaces || !elsewhere)
	o.Now = time.Now()
	return show.Write(out, items, one, o)
}

func labDescribeCommand(f *labFlags) *cobra.Command {
	var q queryFlags
	cmd := &cobra.Command{
		Use:     "describe KIND [NAME…] | KIND/NAME…",
		Short:   "Show objects at length: their pods, what is rejected of them, and why a pod does not run",
		Example: "  myelin lab describe pod web\n  myelin lab describe service/web",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			queries, err := q.queries(args)
			if err != nil {
				return err
			}
			l, err := f.open(nil)
			if err != nil {
				return err
			}
			for n, query := range queries {
				if n > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				if err := l.Describe(cmd.Context(), cmd.OutOrStdout(), query); err != nil {
					return err
				}
			}
			return nil
		},
	}
	q.add(cmd)
	return cmd
}

func labLogsCommand(f *labFlags) *cobra.Command {
	var o lab.LogOptions
	cmd := &cobra.Command{
		Use:     "logs POD | KIND/NAME",
		Short:   "Show what the containers of a pod have written",
		Example: "  myelin lab logs web -c server --tail 10\n  myelin lab logs -f deployment/web",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := f.open(nil)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			o.Notes = cmd.ErrOrStderr()
			return l.Logs(ctx, cmd.OutOrStdout(), args[0], o)
		},
	}
	cmd.Flags().StringVarP(&o.Container, "container", "c", "", "the container (default: the first one)")
	cmd.Flags().BoolVar(&o.All, "all-containers", false, "all containers")
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on as more is written, until the pod is gone")
	cmd.Flags().IntVar(&o.Tail, "tail", -1, "the last lines alone")
	return cmd
}
