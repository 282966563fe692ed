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
	"myelin/identity"
	"myelin/policy"
	"myelin/policy/trace"
)

// policyVerbs are those about policies that show no table. Their exit status is an
// answer.
func policyVerbs(f *listFlags) []*cobra.Command {
	return []*cobra.Command{answering((&traceFlags{list: f}).command()), answering((&diffFlags{list: f}).command())}
}

// unanswered is the error of a command whose exit status is an answer, where there is
// none: wrong usage, a name that nothing has, no agent. It was printed.
type unanswered struct{ error }

// Unwrap is the exit status.
func (unanswered) Unwrap() error { return exitStatus(2) }

// answering makes a command end with 2 where there is no answer.
func answering(cmd *cobra.Command) *cobra.Command {
	failed := func(cmd *cobra.Command, err error) error {
		var status exitStatus
		if err == nil || errors.As(err, &status) {
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "myelin:", err)
		return unanswered{err}
	}
	args, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, list []string) error { return failed(cmd, args(cmd, list)) }
	cmd.RunE = func(cmd *cobra.Command, list []string) error { return failed(cmd, run(cmd, list)) }
	cmd.SetFlagErrorFunc(failed)
	return cmd
}

type traceFlags struct {
	list                 *listFlags
	from, to, port, flow string
}

func (f *traceFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Say what policies make of a flow, which rule decides, and what would have to change",
		Long: "Says for both ends of a flow, which need not be there, what policies say: the verdict, the rule that " +
			"decides with file and line, the rules that were looked at, " +
			"and what would turn the answer round. Policies apply to each backend of a Service. The exit status is 0 " +
			"if the flow is allowed, or denied and only audited, 1 if it is denied, and 2 where there is no answer: " +
			"wrong usage, no such pod, no agent.",
		Example: "  myelin policy trace --from demo/client --to demo/web --port 80/TCP\n  myelin policy trace --from " +
			"world --to service/demo/web --port 443\n" +
			"  myelin policy trace --flow '10.0.1.2:40000->10.0.2.2:80/TCP'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.from, "from", "",
		"NAMESPACE/POD, an address, node/NAME, or an entity such as world or host")
	cmd.Flags().StringVar(&f.to, "to", "",
		"the same, or a Service: NAMESPACE/NAME, service/NAMESPACE/NAME or its address")
	cmd.Flags().StringVar(&f.port, "port", "",
		"as in 80/TCP, 53/UDP, http/TCP by name, or 8/ICMP by type; a Service's own port")
	for _, end := range []string{"from", "to"} {
		_ = cmd.RegisterFlagCompletionFunc(end, completion(&f.list.socket, ends))
	}
	cmd.Flags().StringVar(&f.flow, "flow", "",
		"instead: SOURCE:PORT->DESTINATION:PORT/PROTOCOL, or an ID that myelin flow list shows")
	return cmd
}

func (f *traceFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	client, done, err := dial(f.list.socket)
	if err != nil {
		return err
	}
	defer done()
	answer, err := client.TracePolicies(cmd.Context(), &apiv1.TracePoliciesRequest{From: f.from, To: f.to, Port: f.port,
		Flow: f.flow}, large())
	if err != nil {
		return agentError(err, f.list.socket)
	}
	var t trace.Trace
	if err := json.Unmarshal(answer.GetJson(), &t); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if f.list.output.structured() {
		err = f.list.output.writeJSON(cmd.OutOrStdout(), answer.GetJson())
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), t.String())
	}
	if err == nil && t.Verdict != trace.Allowed && t.Verdict != trace.Audited {
		err = exitStatus(1)
	}
	return err
}

func (f *traceFlags) check() error {
	if f.flow != "" && f.from+f.to+f.port != "" {
		return errors.New("--flow stands alone: it has both ends and the port")
	}
	if f.flow == "" && (f.from == "" || f.to == "" || f.port == "") {
		return errors.New("want --from, --to and --port, or --flow")
	}
	return nil
}

type diffFlags struct {
	list   *listFlags
	remove []string
	limit  int
}

func (f *diffFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [FILE]",
		Short: "Say what a changed policy would allow and deny, before it is applied",
		Long: "Compares what policies say now with what they would say with the policies and CiliumCIDRGroups of " +
			"FILE (- is the standard input) in the place of those of the same name, and without those " +
			"that --delete names: for all flows that this node has rows of, and for its endpoints with all peers " +
			"that it knows. Nothing is applied. The exit status is 0 if nothing would be denied that is allowed now, " +
			"1 if something would, and 2 where there is no answer.",
		Example: "  myelin policy diff web.yaml\n  myelin policy diff --delete \"NetworkPolicy demo/web\"",
		Args:    cobra.MaximumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().StringArrayVar(&f.remove, "delete", nil,
		"\"KIND NAMESPACE/NAME\" of a policy that goes; may be repeated")
	cmd.Flags().IntVar(&f.limit, "limit", 200, "lines of flows, and of pairs, to show at most; 0: all")
	return cmd
}

// diffWait is longer than the agent takes at most.
const diffWait = time.Minute

func (f *diffFlags) run(cmd *cobra.Command, args []string) error {
	req := &apiv1.DiffPoliciesRequest{Delete: f.remove}
	if len(args) == 1 {
		var err error
		if req.Name, req.Yaml, err = readFile(cmd, args[0]); err != nil {
			return err
		}
	}
	client, done, err := dial(f.list.socket)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(cmd.Context(), diffWait)
	defer cancel()
	answer, err := client.DiffPolicies(ctx, req, large())
	if err != nil {
		return agentError(err, f.list.socket)
	}
	var d policy.Diff
	if err := json.Unmarshal(answer.GetJson(), &d); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if f.list.output.structured() {
		err = f.list.output.writeJSON(cmd.OutOrStdout(), answer.GetJson())
	} else {
		err = writeDiff(cmd.OutOrStdout(), &d, f.limit)
	}
	if err == nil && denies(&d) {
		err = exitStatus(1)
	}
	return err
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
func denies(d *policy.Diff) bool {
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
func writeDiff(w io.Writer, d *policy.Diff, limit int) error {
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
		fmt.Fprintf(&b, "  %s: %s %s\n", f.Flow, f.Direction, f.Turn)
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
			cmp.Or(p.Ports, "all"), p.Turn)
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
