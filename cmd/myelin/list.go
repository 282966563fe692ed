package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/api"
	apiv1 "myelin/api/v1"
)

// noun is a command whose subcommands show tables of the agent.
type noun struct {
	name, short string
	alias       string // another name, or empty
	verbs       []verb
	// more makes the verbs that do something else than to show a table.
	more func(*listFlags) []*cobra.Command
}

// verb shows one table.
type verb struct {
	name, short string
	table       string
	// by is the column that the verb's one argument selects a row by; empty: no
	// argument, and all rows. With prefix the argument is a part of the table's
	// name instead.
	by     string
	prefix bool
	// arg is what help calls the argument; empty: as the column.
	arg string
	// absent says what it means that the agent has no such table; empty: the agent's own words do.
	absent string
	// write writes rows as text; nil: as a table.
	write func(io.Writer, *apiv1.ListResponse) error
}

// nouns are all lists that the command line knows.
func nouns() []noun {
	return []noun{
		{name: "endpoint", short: "Inspect the endpoints of this node", verbs: []verb{
			{
				name: "list", short: "List endpoints with identity, labels and policy enforcement",
				table: "endpoint-details", write: writeLines,
			},
			{name: "get", short: "Show the endpoint with an ID", table: "endpoint-details", by: "ID"},
		}},
		{name: "identity", short: "Inspect the identities of label sets on this node", verbs: []verb{
			{name: "list", short: "List identities with their labels", table: "identities"},
			{name: "get", short: "Show the labels of an identity", table: "identities", by: "ID"},
			{name: "addresses", short: "List addresses with their identities", table: "identity-addresses"},
		}},
		{name: "route", short: "Inspect routes and neighbours", verbs: []verb{
			{name: "list", short: "List the routes that the kernel must have", table: "routes"},
			{name: "neighbours", short: "List the neighbours that the kernel must have", table: "neighbours"},
			{name: "nexthops", short: "List the gateways and nodes that are kept resolved", table: "nexthops"},
			{name: "prefixes", short: "List the prefixes of the cluster", table: "prefixes"},
			{name: "paths", short: "List the entries of the forwarding cache", table: "paths"},
			{name: "wires", short: "List the devices that lead to other nodes", table: "wires"},
			{name: "devices", short: "List the devices of the node", table: "devices"},
			{name: "addresses", short: "List the addresses that the kernel must have", table: "addresses"},
		}},
		{name: "flow", short: "List conntrack entries", verbs: []verb{
			{name: "list", short: "List conntrack entries", table: "flows"},
		}, more: flowVerbs, alias: "flows"},
		{name: "map", short: "Inspect BPF maps", verbs: []verb{
			{name: "list", short: "List maps with their entries and memory", table: "maps"},
			{name: "dump", short: "Show the entries of a map", table: "map", by: "NAME", prefix: true},
		}},
		{name: "node", short: "Inspect the nodes of the cluster", verbs: []verb{{name: "list",
			short: "List the nodes of the cluster", table: "nodes"}}},
		{name: "pod", short: "Inspect the pods of the cluster", verbs: []verb{{name: "list",
			short: "List the pods of the cluster", table: "pods"}}},
		{name: "policy", short: "Manage network policies", verbs: []verb{
			{name: "list", short: "List policies, and why one is refused", table: "policies"},
			{name: "get", short: "Show the policy entries of an endpoint in the kernel, with rule and hits",
				table: "policy-rows", by: "ENDPOINT|POD", prefix: true},
			{name: "rules", short: "List rules with their hits, and those that decide nothing",
				table: "policy-uses"},
			{name: "drops", short: "List denied packets by rule and endpoint", table: "policy-drops"},
		}, more: policyVerbs},
		{name: "cidrgroup", short: "Inspect CiliumCIDRGroups", verbs: []verb{
			{name: "list", short: "List CiliumCIDRGroups, and why one is refused", table: "cidr-groups"},
		}},
		{name: "fqdn", short: "Inspect the DNS names that pods have resolved", verbs: []verb{{name: "list",
			short: "List names, addresses, remaining TTL, pods and policies", table: "fqdn"}}},
		{name: "prefilter", short: "Inspect the denylist", verbs: []verb{
			{name: "list", table: "prefilter",
				short: "List the CiliumCIDRGroups of myelin.policy.prefilter, and which of their prefixes are blocked"},
		}},
		{name: "metrics", short: "Inspect the agent's metrics", verbs: []verb{{name: "list",
			short: "List the metrics that /metrics exposes", table: "metrics"}}},
		{name: "table", short: "Inspect the tables of the agent", verbs: []verb{
			{name: "list", short: "List the tables", table: "tables"},
			{name: "show", short: "Show the rows of a table", table: "", by: "TABLE", prefix: true},
		}},
	}
}

// listFlags are those of every list.
type listFlags struct {
	socket  string
	output  output
	filters []string
	limit   uint32
}

func nounCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, n := range append(nouns(), serviceNouns()...) {
		f := &listFlags{}
		cmd := &cobra.Command{Use: n.name, Short: n.short, Args: cobra.NoArgs}
		if n.alias != "" {
			cmd.Aliases = []string{n.alias}
		}
		socketFlag(cmd, &f.socket)
		outputFlag(cmd, &f.output, "")
		for _, v := range n.verbs {
			cmd.AddCommand(f.command(n, v))
		}
		if n.more != nil {
			cmd.AddCommand(n.more(f)...)
		}
		list = append(list, cmd)
	}
	return list
}

func (f *listFlags) command(n noun, v verb) *cobra.Command {
	cmd := &cobra.Command{
		Use: v.name, Short: v.short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, n, v, args) },
	}
	if v.by != "" {
		cmd.Use, cmd.Args = v.name+" "+cmp.Or(v.arg, v.by), cobra.ExactArgs(1)
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if words := completions(v); words != nil {
		cmd.ValidArgsFunction = completion(&f.socket, words)
	}
	if v.by == "" || v.prefix {
		cmd.Flags().StringArrayVarP(&f.filters, "filter", "f", nil,
			"only rows whose cell is this: COLUMN=VALUE, or has this in it: COLUMN~PART, ~PART")
		_ = cmd.RegisterFlagCompletionFunc("filter", completeFilter(f, v))
		cmd.Flags().Uint32Var(&f.limit, "limit", 1000, "rows to show at most; 0: all")
	}
	return cmd
}

func (f *listFlags) run(cmd *cobra.Command, n noun, v verb, args []string) error {
	req, err := f.request(v, args)
	if err != nil {
		return err
	}
	answer, err := f.ask(cmd.Context(), req)
	if v.absent != "" && status.Code(err) == codes.NotFound {
		return errors.New(v.absent)
	}
	if err != nil {
		return agentError(err, f.socket)
	}
	one := v.by != "" && !v.prefix
	if one && len(answer.GetRows()) == 0 && (!req.GetJson() || string(answer.GetJson()) == "[]") {
		return fmt.Errorf("there is no %s %s", n.name, args[0])
	}
	out := cmd.OutOrStdout()
	switch {
	case req.GetJson() && one:
		err = f.output.writeJSON(out, bytes.TrimSuffix(bytes.TrimPrefix(answer.GetJson(), []byte("[")), []byte("]")))
	case req.GetJson():
		err = f.output.writeJSON(out, answer.GetJson())
	case one:
		err = writeFields(out, answer.GetColumns(), answer.GetRows()[0].GetCells())
	case v.write != nil:
		err = v.write(out, answer)
	default:
		err = writeTable(out, answer)
	}
	if left := answer.GetLeftOut(); err == nil && left > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d more; --limit 0 shows all\n", left)
	}
	return err
}

func (f *listFlags) request(v verb, args []string) (*apiv1.ListRequest, error) {
	r := &apiv1.ListRequest{Table: v.table, Limit: f.limit, Json: f.output.structured(), Wide: f.output.wide()}
	switch {
	case v.prefix:
		r.Table = strings.TrimSpace(v.table + " " + args[0])
	case v.by != "":
		r.Filters = []*apiv1.ListFilter{{Column: v.by, Value: args[0]}}
	}
	for _, text := range f.filters {
		i := strings.IndexAny(text, "=~")
		if i < 0 {
			return nil, fmt.Errorf("--filter %s: want COLUMN=VALUE or COLUMN~PART", text)
		}
		r.Filters = append(r.Filters, &apiv1.ListFilter{Column: text[:i], Value: text[i+1:], Part: text[i] == '~'})
	}
	return r, nil
}

// list is ask with errors for users.
func (f *listFlags) list(ctx context.Context, r *apiv1.ListRequest) (*apiv1.ListResponse, error) {
	answer, err := f.ask(ctx, r)
	if err != nil {
		return nil, agentError(err, f.socket)
	}
	return answer, nil
}

// ask asks and puts the parts of the answer together. The error is that of the call.
func (f *listFlags) ask(ctx context.Context, r *apiv1.ListRequest) (*apiv1.ListResponse, error) {
	client, done, err := dial(f.socket)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return api.List(ctx, client, r)
}

func writeJSON(w io.Writer, data []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}

// writeTable aligns columns. An empty cell is a dash, so that words can be
// counted.
func writeTable(w io.Writer, t *apiv1.ListResponse) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.GetColumns(), "\t"))
	plain := strings.NewReplacer("\t", " ", "\n", "; ")
	for _, row := range t.GetRows() {
		cells := make([]string, len(row.GetCells()))
		for i, c := range row.GetCells() {
			if cells[i] = plain.Replace(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
	return writeTrimmed(w, &b)
}

// writeTrimmed writes lines without the blanks at their ends.
func writeTrimmed(w io.Writer, b *bytes.Buffer) error {
	var out bytes.Buffer
	for line := range strings.Lines(b.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	_, err := out.WriteTo(w)
	return err
}

// writeFields is one row, a line for each column, and for each further line of a cell.
func writeFields(w io.Writer, columns, cells []string) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, c := range columns {
		for _, line := range strings.Split(cells[i], "\n") {
			fmt.Fprintf(tw, "%s\t%s\n", c, line)
			c = ""
		}
	}
	tw.Flush()
	return writeTrimmed(w, &b)
}
