package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
	"myelin/policy/explain"
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
	// What the flow carries, and its destination's name.
	http, host, dns, fqdn string
	headers               []string
}

func (f *traceFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Explain the verdict on a flow: the rule that decides, and what would change the verdict",
		Long: "Says for both ends of a flow, which need not be there, what policies say: the verdict, the rule that " +
			"decides with file and line, the rules that were looked at, " +
			"and what would turn the answer round. Where the proxy decides on what a flow carries, --http or --dns " +
			"give the verdict on that. Policies apply to each backend of a Service. The exit status is 0 if the flow " +
			"is allowed, redirected to the proxy, or denied and only audited, 1 if it is denied, and 2 where there " +
			"is no answer: wrong usage, no such pod, no agent.",
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
	cmd.Flags().StringVar(&f.http, "http", "", `an HTTP request on the flow, as in "GET /path"`)
	cmd.Flags().StringVar(&f.host, "host", "", "the request's host, or the server's name of a TLS connection")
	cmd.Flags().StringArrayVar(&f.headers, "header", nil, `a header of the request, as in "Name: value"`)
	cmd.Flags().StringVar(&f.dns, "dns", "", "a name that a DNS query on the flow asks for")
	cmd.Flags().StringVar(&f.fqdn, "fqdn", "", "a DNS name whose address the destination is")
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
		Flow: f.flow, Http: f.http, Host: f.host, Headers: f.headers, Dns: f.dns, Fqdn: f.fqdn}, large())
	if err != nil {
		return agentError(err, f.list.socket)
	}
	var t explain.Trace
	if err := json.Unmarshal(answer.GetJson(), &t); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if f.list.output.structured() {
		err = f.list.output.writeJSON(cmd.OutOrStdout(), answer.GetJson())
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), t.String())
	}
	if err == nil && t.Verdict != explain.Allowed && t.Verdict != explain.Audited && t.Verdict != explain.Redirected {
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
