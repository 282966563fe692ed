package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"myelin/agent/feature"
	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/lab"
)

// completeTime bounds what a completion may ask of an agent: the user waits for it at a prompt.
const completeTime = 2 * time.Second

// completer makes words for the shell out of what the agent behind a socket has. It gives none where no agent answers.
type completer func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completion makes a completer of words that an agent tells.
func completion(
	socket *string,
	words func(ctx context.Context, client apiv1.AgentClient) ([]string, error),
) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !cmd.HasSubCommands() && cmd.Args != nil &&
			cmd.Args(cmd, append(slices.Clone(args), "")) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp // it takes no more
		}
		client, done, err := dial(*socket)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer done()
		ctx, cancel := context.WithTimeout(context.Background(), completeTime)
		defer cancel()
		list, err := words(ctx, client)
		if err != nil {
			cobra.CompDebugln(agentError(err, *socket).Error(), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// cells are words of a table: the cells of a column, with those of another one as a description.
func cells(table, column, description string) func(context.Context, apiv1.AgentClient) ([]string, error) {
	return func(ctx context.Context, client apiv1.AgentClient) ([]string, error) {
		answer, err := api.List(ctx, client, &apiv1.ListRequest{Table: table})
		if err != nil {
			return nil, err
		}
		word, about := slices.Index(answer.GetColumns(), column), slices.Index(answer.GetColumns(), description)
		if word < 0 {
			return nil, fmt.Errorf("table %s has no column %s", table, column)
		}
		var list []string
		for _, row := range answer.GetRows() {
			text := row.GetCells()[word]
			if about >= 0 {
				first, _, _ := strings.Cut(row.GetCells()[about], "\n")
				text = cobra.CompletionWithDesc(text, first)
			}
			list = append(list, text)
		}
		slices.Sort(list)
		return slices.Compact(list), nil
	}
}

// podNames are "namespace/name" of the cluster's pods.
func podNames(ctx context.Context, client apiv1.AgentClient) ([]string, error) {
	answer, err := api.List(ctx, client, &apiv1.ListRequest{Table: "pods", Json: true})
	if err != nil {
		return nil, err
	}
	var pods []struct{ Namespace, Name string }
	if err := json.Unmarshal(answer.GetJson(), &pods); err != nil {
		return nil, err
	}
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Namespace + "/" + p.Name
	}
	slices.Sort(names)
	return names, nil
}

// ends are what --from and --to of a trace take: pods, nodes and entities.
func ends(ctx context.Context, client apiv1.AgentClient) ([]string, error) {
	pods, err := podNames(ctx, client)
	if err != nil {
		return nil, err
	}
	nodes, err := cells("nodes", "Name", "")(ctx, client)
	for i := range nodes {
		nodes[i] = "node/" + nodes[i]
	}
	return slices.Concat([]string{"world", "host", "remote-node", "kube-apiserver"}, nodes, pods), err
}

// completions are those of the arguments of noun's verbs, by the table that a verb shows.
func completions(v feature.View) func(context.Context, apiv1.AgentClient) ([]string, error) {
	switch {
	case v.By == "" && !v.Prefix:
		return nil
	case v.Table == "":
		return cells("tables", "Table", "Rows")
	case v.Table == "map":
		return cells("maps", "Map", "Type")
	case v.Table == "policy-rows":
		return endpointsAndPods
	case v.Table == "identities":
		return cells(v.Table, "ID", "Labels")
	case v.By == "ID":
		return cells(v.Table, "ID", "Pod")
	}
	return cells(v.Table, v.By, "")
}

// endpointsAndPods are the IDs of this node's endpoints, and their pods.
func endpointsAndPods(ctx context.Context, client apiv1.AgentClient) ([]string, error) {
	ids, err := cells("endpoints", "ID", "Pod")(ctx, client)
	if err != nil {
		return nil, err
	}
	pods, err := cells("endpoints", "Pod", "")(ctx, client)
	return append(ids, pods...), err
}

// completeFilter completes --filter: COLUMN= and COLUMN~, then the cells of the column.
func completeFilter(f *listFlags, v feature.View) completer {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		table := v.Table
		if v.Prefix && len(args) > 0 {
			table = strings.TrimSpace(v.Table + " " + args[0])
		}
		columns, _, chosen := strings.Cut(toComplete, "=")
		list, directive := completion(&f.socket, func(ctx context.Context, client apiv1.AgentClient) ([]string, error) {
			answer, err := api.List(ctx, client, &apiv1.ListRequest{Table: table, Limit: completeRows})
			if err != nil {
				return nil, err
			}
			return filterWords(answer, columns, chosen), nil
		})(cmd, nil, toComplete)
		if !chosen {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return list, directive
	}
}

// completeRows bounds the rows that values of filters are taken from.
const completeRows = 1000

func filterWords(answer *apiv1.ListResponse, column string, chosen bool) (list []string) {
	at := slices.IndexFunc(answer.GetColumns(), func(c string) bool { return strings.EqualFold(c, column) })
	switch {
	case !chosen:
		for _, c := range answer.GetColumns() {
			list = append(list, c+"=", c+"~")
		}
	case at >= 0:
		for _, row := range answer.GetRows() {
			if cell := row.GetCells()[at]; cell != "" && !strings.Contains(cell, "\n") {
				list = append(list, column+"="+cell)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// completeLab completes the names of labs, and completePlace those of a lab's nodes and pods.
func completeLab(f *labFlags) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := lab.List(f.dir) // without a directory there are no labs
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func completePlace(f *labFlags, pods bool) completer {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		l, err := f.open(nil)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault // a command and its files
		}
		var names []string
		for _, n := range l.Nodes() {
			names = append(names, n.Name())
		}
		if pods {
			list, _ := l.Pods()
			for _, p := range list {
				names = append(names, p.Name())
			}
			names = append(names, "world")
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
