package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"myelin/api"
	apiv1 "myelin/api/v1"
)

// caller is a request to the service Services.
type caller struct {
	client apiv1.ServicesClient
	ctx    context.Context
}

// withServices calls the agent's service Services.
func withServices(ctx context.Context, socket string, do func(caller) error) error {
	conn, err := api.Dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	return agentError(do(caller{apiv1.NewServicesClient(conn), ctx}), socket)
}

// changeServices is withServices for what takes little time.
func changeServices(cmd *cobra.Command, socket string, do func(caller) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
	defer cancel()
	return withServices(ctx, socket, do)
}

// serviceVerbs change and follow Services that are programmed by API.
func serviceVerbs(f *listFlags) []*cobra.Command {
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Delete a Service that was programmed", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeServices(cmd, f.socket, func(c caller) error {
				if _, err := c.client.Delete(c.ctx, &apiv1.DeleteServiceRequest{Name: args[0]}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "service %s deleted\n", args[0])
				return err
			})
		},
	}
	remove.ValidArgsFunction = completion(&f.socket, cells("api-services", "Name", ""))
	return []*cobra.Command{(&upsertFlags{socket: &f.socket}).command(), remove, watchCommand(f), topCommand(f)}
}

// backendVerbs change backends of any Service.
func backendVerbs(f *listFlags) []*cobra.Command {
	var state, service string
	var weight uint16
	cmd := &cobra.Command{
		Use:   "set ADDRESS:PORT[/PROTOCOL]",
		Short: "Set a backend's state or weight",
		Long: "Sets the state of a backend, whoever has the address, until it is set again: quarantined backends get " +
			"new flows only where nothing else is left, those in " +
			"maintenance never; flows that a backend has go on. The weight is that in Services programmed by `myelin " +
			"service upsert`. Both are kept over restarts.",
		Example: "  myelin backend set 10.0.0.1:8080 --state maintenance\n  myelin backend set 10.0.0.1:53/UDP " +
			"--weight 0 --service dns",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := &apiv1.SetBackendRequest{Backend: args[0], Service: service}
			if cmd.Flags().Changed("weight") {
				w := uint32(weight)
				r.Weight = &w
			}
			if r.State = apiv1.BackendState(apiv1.BackendState_value["BACKEND_STATE_"+strings.ToUpper(state)]); state !=
				"" && r.State == 0 {
				return fmt.Errorf("--state %s: want active, quarantined or maintenance", state)
			}
			return changeServices(cmd, f.socket, func(c caller) error {
				if _, err := c.client.SetBackend(c.ctx, r); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "backend %s set\n", args[0])
				return err
			})
		},
	}
	cmd.ValidArgsFunction = completion(&f.socket, cells("service-backends", "Address", "State"))
	cmd.Flags().StringVar(&state, "state", "", "active, quarantined or maintenance")
	cmd.Flags().Uint16Var(&weight, "weight", 1, "relative to other backends; 0: no new flows")
	cmd.Flags().StringVar(&service, "service", "",
		"the Service whose weight it is (default: all that have the backend)")
	return []*cobra.Command{cmd}
}

func watchCommand(f *listFlags) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use: "watch", Short: "Show programmed Services, then their changes",
		Long: "Shows a line for each Service that was programmed by API, then `synced`, then a line for each change, " +
			"also of states that health checks find.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return withServices(ctx, f.socket, func(c caller) error { return f.watch(cmd.OutOrStdout(), c, count) })
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 0, "end after so many lines; 0: never")
	return cmd
}

func (f *listFlags) watch(w io.Writer, c caller, count int) error {
	stream, err := c.client.Watch(c.ctx, &apiv1.WatchServicesRequest{}, large())
	if err != nil {
		return err
	}
	for n := 0; count == 0 || n < count; n++ {
		e, err := stream.Recv()
		if c.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.writeEvent(w, e); err != nil {
			return err
		}
	}
	return nil
}

func (f *listFlags) writeEvent(w io.Writer, e *apiv1.ServiceEvent) error {
	if !f.output.structured() {
		_, err := fmt.Fprintln(w, eventText(e))
		return err
	}
	data, err := protojson.Marshal(e)
	if err != nil {
		return err
	}
	return f.output.writeItem(w, json.RawMessage(data))
}

// eventText is "upserted web 192.0.2.10:80/TCP => 10.0.0.1:8080 (active), …".
func eventText(e *apiv1.ServiceEvent) string {
	s := e.GetService()
	words := []string{lower(e.GetType().String(), "SERVICE_EVENT_TYPE_")}
	if s != nil {
		words = append(words, s.GetName())
	}
	words = append(words, s.GetFrontends()...)
	var backends []string
	for _, b := range s.GetBackends() {
		text := lower(b.GetState().String(), "BACKEND_STATE_")
		if h := b.GetHealth(); h != "" {
			text += ", " + h
		}
		if w := b.GetWeight(); w != 1 {
			text += fmt.Sprintf(", weight %d", w)
		}
		backends = append(backends, b.GetAddress()+" ("+text+")")
	}
	if len(backends) > 0 {
		words = append(words, "=>", strings.Join(backends, ", "))
	}
	if p := s.GetProblems(); len(p) > 0 {
		words = append(words, "problems:", strings.Join(p, "; "))
	}
	return strings.Join(words, " ")
}

// lower is an enumeration's value as a word.
func lower(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
}
