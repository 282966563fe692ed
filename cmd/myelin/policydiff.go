package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
	"myelin/policy/explain"
	"myelin/policy/identity"
)

type diffFlags struct {
	list   *listFlags
	remove []string
	limit  int
	flows  string // a file; empty: those that there are
	all    bool
}

func (f *diffFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [FILE…]",
		Short: "Show what a changed policy would allow and deny, before it is applied",
		Long: "Compares what policies say now with what they would say with the policies and CiliumCIDRGroups of " +
			"each FILE (- is the standard input) in the place of those of the same name, and without those " +
			"that --delete names: for all flows that this node has rows of, and for its endpoints with all peers " +
			"that it knows. Nothing is applied. The exit status is 0 if nothing would be denied that is allowed now, " +
			"1 if something would, and 2 where there is no answer.\n\n" +
			"With --flows it compares the verdicts on the flows of a recording (myelin flows record, hubble observe " +
			"-o jsonpb) of any nodes instead, and groups those that change by the workload whose policies decide. " +
			"The exit status is 0 if no verdict changes, 1 if one does.",
		Example: "  myelin policy diff web.yaml\n  myelin policy diff --delete NetworkPolicy/demo/web\n" +
			"  myelin policy diff --flows /tmp/flows.json web.yaml db.yaml",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().StringArrayVar(&f.remove, "delete", nil,
		"KIND/NAMESPACE/NAME, or \"KIND NAMESPACE/NAME\", of a policy that goes; may be repeated")
	cmd.Flags().StringVar(&f.flows, "flows", "", "a file of recorded flows whose verdicts are compared")
	cmd.Flags().BoolVar(&f.all, "all", false, "with --flows: also flows whose verdict stays")
	cmd.Flags().IntVar(&f.limit, "limit", 200,
		"lines of flows, and of pairs, to show at most (with --flows by owner); 0: all")
	return cmd
}

// diffWait is longer than the agent takes at most.
const diffWait = time.Minute

func (f *diffFlags) run(cmd *cobra.Command, args []string) error {
	if f.all && f.flows == "" {
		return errors.New("--all is for --flows")
	}
	req := &apiv1.DiffPoliciesRequest{Delete: f.remove, All: f.all}
	for _, path := range args {
		name, yaml, err := readFile(cmd, path)
		if err != nil {
			return err
		}
		req.Files = append(req.Files, &apiv1.PolicyFile{Name: name, Yaml: yaml})
	}
	if f.flows != "" {
		return f.replay(cmd, req)
	}
	answer, err := f.ask(cmd.Context(), req)
	if err != nil {
		return err
	}
	var d explain.Diff
	if err := json.Unmarshal(answer, &d); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if f.list.output.structured() {
		err = f.list.output.writeJSON(cmd.OutOrStdout(), answer)
	} else {
		err = writeDiff(cmd.OutOrStdout(), &d, f.limit)
	}
	if err == nil && denies(&d) {
		err = exitStatus(1)
	}
	return err
}

// ask returns the agent's answer, which is JSON.
func (f *diffFlags) ask(ctx context.Context, req *apiv1.DiffPoliciesRequest) ([]byte, error) {
	client, done, err := dial(f.list.socket)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, diffWait)
	defer cancel()
	answer, err := client.DiffPolicies(ctx, req, large())
	return answer.GetJson(), agentError(err, f.list.socket)
}

func readFile(cmd *cobra.Command, path string) (name string, data []byte, err error) {
	if path == "-" {
		data, err = io.ReadAll(cmd.InOrStdin())
		return "standard input", data, err
	}
	data, err = os.ReadFile(path)
	if err == nil && len(data) == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	return filepath.Base(path), data, err
}

// denies reports whether anything is denied that was allowed.
func denies(d *explain.Diff) bool {
	for _, f := range d.Flows {
		if !f.Allowed {
			return true
		}
	}
	for _, p := range d.Pairs {
		if !p.Allowed {
			return true
		}
	}
	return false
}

// writeDiff writes lines, at most limit of each kind.
func writeDiff(w io.Writer, d *explain.Diff, limit int) error {
	var b strings.Builder
	for _, o := range d.Objects {
		fmt.Fprintf(&b, "%s %s\n", o.Object, o.Change)
	}
	left := func(shown, all int) bool {
		if limit > 0 && shown == limit && all > shown {
			fmt.Fprintf(&b, "  … and %d more; --limit 0 shows all\n", all-shown)
			return true
		}
		return false
	}
	fmt.Fprintf(&b, "flows: %d of %d change\n", len(d.Flows), d.LookedFlows)
	for i, f := range d.Flows {
		if left(i, len(d.Flows)) {
			break
		}
		fmt.Fprintf(&b, "  %s: %s %s\n", f.Flow, f.Direction, f.VerdictChange)
	}
	fmt.Fprintf(&b, "endpoints and peers: %d change, %d pairs were compared\n", len(d.Pairs), d.LookedPairs)
	for i, p := range d.Pairs {
		if left(i, len(d.Pairs)) {
			break
		}
		peer := shortLabels(p.Peer)
		if p.Peers > 1 {
			peer += fmt.Sprintf(" (%d addresses, such as %s)", p.Peers, p.Example)
		} else if p.Example.IsValid() && p.Example.String() != p.Peer {
			peer += " (" + p.Example.String() + ")"
		}
		word := [...]string{"from", "to"}[p.Direction]
		fmt.Fprintf(&b, "  %s %s %s %s, %s: %s\n", strings.Join(p.Endpoints, " "), p.Direction, word, peer,
			cmp.Or(p.Ports, "all"), p.VerdictChange)
	}
	if d.Unfinished != "" {
		fmt.Fprintf(&b, "not all was compared: %s\n", d.Unfinished)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shortLabels leaves out what a pod has by its namespace's labels.
func shortLabels(text string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(text, ","), func(l string) bool {
		return strings.HasPrefix(l, "k8s:"+identity.NamespaceLabelsKey)
	}), ",")
}
