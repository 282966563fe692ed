package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent"
	"myelin/agent/feature"
	"myelin/api"
	apiv1 "myelin/api/v1"
)

// listFlags are those of every list.
type listFlags struct {
	socket  string
	output  output
	filters []string
	limit   uint32
}

// furtherVerbs make the subcommands that do something else than to show a table, by command.
func furtherVerbs() map[string]func(*listFlags) []*cobra.Command {
	return map[string]func(*listFlags) []*cobra.Command{
		"flow": flowVerbs, "policy": policyVerbs, "service": serviceVerbs, "backend": backendVerbs,
		"gateway": gatewayVerbs, "encrypt": encryptVerbs,
	}
}

func nounCommands() []*cobra.Command {
	var list []*cobra.Command
	more := furtherVerbs()
	for _, n := range agent.Commands() {
		f := &listFlags{}
		cmd := &cobra.Command{Use: n.Name, Short: n.Short, Args: cobra.NoArgs}
		if n.Alias != "" {
			cmd.Aliases = []string{n.Alias}
		}
		socketFlag(cmd, &f.socket)
		outputFlag(cmd, &f.output, "")
		for _, v := range n.Views {
			cmd.AddCommand(f.command(n, v))
		}
		if verbs := more[n.Name]; verbs != nil {
			cmd.AddCommand(verbs(f)...)
		}
		list = append(list, cmd)
	}
	return list
}

func (f *listFlags) command(n feature.Command, v feature.View) *cobra.Command {
	cmd := &cobra.Command{
		Use: v.Name, Short: v.Short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, n, v, args) },
	}
	if v.By != "" {
		cmd.Use, cmd.Args = v.Name+" "+cmp.Or(v.Arg, v.By), cobra.ExactArgs(1)
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if words := completions(v); words != nil {
		cmd.ValidArgsFunction = completion(&f.socket, words)
	}
	if v.By == "" || v.Prefix {
		cmd.Flags().StringArrayVarP(&f.filters, "filter", "f", nil,
			"only rows whose cell is this: COLUMN=VALUE, or has this in it: COLUMN~PART, ~PART")
		_ = cmd.RegisterFlagCompletionFunc("filter", completeFilter(f, v))
		cmd.Flags().Uint32Var(&f.limit, "limit", 1000, "rows to show at most; 0: all")
	}
	return cmd
}

func (f *listFlags) run(cmd *cobra.Command, n feature.Command, v feature.View, args []string) error {
	req, err := f.request(v, args)
	if err != nil {
		return err
	}
	answer, err := f.ask(cmd.Context(), req)
	if v.Absent != "" && status.Code(err) == codes.NotFound {
		return errors.New(v.Absent)
	}
	if err != nil {
		return agentError(err, f.socket)
	}
	one := v.By != "" && !v.Prefix
	if one && len(answer.GetRows()) == 0 && (!req.GetJson() || string(answer.GetJson()) == "[]") {
		return fmt.Errorf("there is no %s %s", n.Name, args[0])
	}
	out := cmd.OutOrStdout()
	switch {
	case req.GetJson() && one:
		err = f.output.writeJSON(out, bytes.TrimSuffix(bytes.TrimPrefix(answer.GetJson(), []byte("[")), []byte("]")))
	case req.GetJson():
		err = f.output.writeJSON(out, answer.GetJson())
	case one:
		err = writeFields(out, answer.GetColumns(), answer.GetRows()[0].GetCells())
	case v.Multiline:
		err = writeLines(out, answer)
	default:
		err = writeTable(out, answer)
	}
	if left := answer.GetLeftOut(); err == nil && left > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d more; --limit 0 shows all\n", left)
	}
	return err
}

func (f *listFlags) request(v feature.View, args []string) (*apiv1.ListRequest, error) {
	r := &apiv1.ListRequest{Table: v.Table, Limit: f.limit, Json: f.output.structured(), Wide: f.output.wide()}
	switch {
	case v.Prefix:
		r.Table = strings.TrimSpace(v.Table + " " + args[0])
	case v.By != "":
		r.Filters = []*apiv1.ListFilter{{Column: v.By, Value: args[0]}}
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

// writeLines is writeTable for cells of several lines, each of which has a line of its own.
func writeLines(w io.Writer, t *apiv1.ListResponse) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.GetColumns(), "\t"))
	for _, row := range t.GetRows() {
		cells := slices.Clone(row.GetCells())
		for i := range cells {
			cells[i] = cmp.Or(strings.ReplaceAll(cells[i], "\t", " "), "-")
		}
		for more := true; more; {
			rest := make([]string, len(cells))
			more = false
			for i, c := range cells {
				var cut bool
				cells[i], rest[i], cut = strings.Cut(c, "\n")
				more = more || cut
			}
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
			cells = rest
		}
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
