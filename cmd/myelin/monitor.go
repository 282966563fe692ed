package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"

	apiv1 "myelin/api/v1"
	"myelin/event"
)

type monitorFlags struct {
	socket   string
	output   output
	drops    bool
	types    []string
	pod      string
	endpoint uint16
	count    int
}

func monitorCommand() *cobra.Command {
	f := &monitorFlags{}
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Show drops and flows as they happen",
		Long: "Shows one line per event: time, hook, event, source (identity) → destination (identity), protocol " +
			"and interface. Drops are limited to bpf.events.default.rateLimit per second and CPU; `myelin drops` " +
			"counts all of them. The begin and end of a flow are shown only if it has a conntrack entry: flows of " +
			"pods with policies, masqueraded flows, or all flows with myelin.flowTracking: always. A line on " +
			"standard error says so.",
		Example: "  myelin monitor --drops --pod default/client\n  myelin monitor -o json | jq .reason",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	socketFlag(cmd, &f.socket)
	outputFlag(cmd, &f.output, "; json is an object a line")
	cmd.Flags().BoolVar(&f.drops, "drops", false, "only drops")
	cmd.Flags().StringSliceVarP(&f.types, "type", "t", nil, "only these: drop, flow-begin, flow-end")
	cmd.Flags().StringVar(&f.pod, "pod", "", "only from or to a pod: NAMESPACE/NAME or NAME")
	cmd.Flags().Uint16Var(&f.endpoint, "endpoint", 0, "only from or to the pod with this ID")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{string(event.Drop),
		string(event.FlowBegin), string(event.FlowEnd)}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("pod", completion(&f.socket, podNames))
	_ = cmd.RegisterFlagCompletionFunc("endpoint", completion(&f.socket, cells("endpoints", "ID", "Pod")))
	cmd.Flags().IntVarP(&f.count, "count", "n", 0, "end after so many events; 0: never")
	return cmd
}

func (f *monitorFlags) request() (*apiv1.MonitorRequest, error) {
	r := &apiv1.MonitorRequest{Pod: f.pod, Endpoint: uint32(f.endpoint)}
	if f.drops {
		f.types = append(f.types, string(event.Drop))
	}
	for _, t := range f.types {
		p := event.TypeToProto(event.Type(t))
		if p == apiv1.EventType_EVENT_TYPE_UNSPECIFIED {
			return nil, fmt.Errorf("--type %s: want %s", t,
				strings.Join([]string{string(event.Drop), string(event.FlowBegin), string(event.FlowEnd)}, ", "))
		}
		r.Types = append(r.Types, p)
	}
	return r, nil
}

func (f *monitorFlags) run(cmd *cobra.Command) error {
	req, err := f.request()
	if err != nil {
		return err
	}
	client, done, err := dial(f.socket)
	if err != nil {
		return err
	}
	defer done()
	ctx, stop := untilSignal(cmd)
	defer stop()
	var header metadata.MD
	stream, err := client.Monitor(ctx, req)
	if err == nil {
		header, err = stream.Header() // the agent listens now
	}
	if err != nil {
		return agentError(err, f.socket)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "listening")
	for _, note := range header.Get(event.NoteHeader) {
		fmt.Fprintln(cmd.ErrOrStderr(), "note: "+note)
	}
	for n := 0; f.count == 0 || n < f.count; n++ {
		p, err := stream.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return agentError(err, f.socket)
		}
		e := event.FromProto(p)
		if f.output.structured() {
			err = f.output.writeItem(cmd.OutOrStdout(), e)
		} else {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
