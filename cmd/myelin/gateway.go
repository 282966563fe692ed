package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"myelin/agent/feature"
	"myelin/api"
	apiv1 "myelin/api/v1"
)

// gatewayVerbs take the load balancer out of service and back.
func gatewayVerbs(f *listFlags) []*cobra.Command {
	var timeout time.Duration
	drain := &cobra.Command{
		Use:   "drain",
		Short: "Drain this load balancer: take it out of service and wait until its flows have ended",
		Long: "Has the health endpoint say `draining` (status 503) until `myelin gateway resume`, also after a " +
			"restart, so that routers send new clients elsewhere. Flows continue. Waits until no flow is left, or " +
			"all peers know those that are left and none is active; the load balancer can be stopped then. If the " +
			"timeout ends before, the exit status is 1. The load balancer stays drained in each case.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return drainGateway(ctx, cmd.OutOrStdout(), f.socket, timeout)
		},
	}
	drain.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait; 0: do not wait")
	resume := &cobra.Command{
		Use: "resume", Short: "Return this load balancer to service", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
			defer cancel()
			return withGateway(f.socket, func(client apiv1.GatewayClient) error {
				r, err := client.Resume(ctx, &apiv1.ResumeRequest{})
				if err != nil {
					return err
				}
				text := "in service"
				if !r.GetWasDraining() {
					text = "was not drained"
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
				return err
			})
		},
	}
	return []*cobra.Command{drain, resume}
}

// withGateway calls the agent's service Gateway.
func withGateway(socket string, do func(apiv1.GatewayClient) error) error {
	conn, err := api.Dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	return agentError(do(apiv1.NewGatewayClient(conn)), socket)
}

// drainGateway drains, and writes a line when what is left has changed, until nothing is or the timeout ends.
func drainGateway(ctx context.Context, w io.Writer, socket string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout+askTimeout)
	defer cancel()
	d := drainWait{w: w, timeout: timeout}
	err := withGateway(socket, func(client apiv1.GatewayClient) error {
		stream, err := client.Drain(ctx, &apiv1.DrainRequest{})
		for err == nil && !d.over() {
			var p *apiv1.DrainProgress
			if p, err = stream.Recv(); err == nil {
				err = d.show(p)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.result()
}

// drainWait waits for the end of draining.
type drainWait struct {
	w       io.Writer
	timeout time.Duration
	began   time.Time // zero: the agent has not said anything
	done    bool
	line    string // the last one
}

func (d *drainWait) show(p *apiv1.DrainProgress) error {
	if d.began.IsZero() {
		d.began = time.Now()
	}
	d.done = p.GetDone()
	text := progressText(p)
	if text == d.line {
		return nil
	}
	d.line = text
	_, err := fmt.Fprintln(d.w, text)
	return err
}

func (d *drainWait) over() bool {
	return d.done || !d.began.IsZero() && time.Since(d.began) >= d.timeout
}

func (d *drainWait) result() error {
	switch {
	case d.done:
		_, err := fmt.Fprintln(d.w, "drained")
		return err
	case d.timeout == 0:
		return nil
	}
	return fmt.Errorf("after %s there are still flows; the load balancer stays drained", d.timeout)
}

// progressText is "12 flows left, 3 active; 192.0.2.2:9882 knows all".
func progressText(p *apiv1.DrainProgress) string {
	parts := []string{fmt.Sprintf("%s left, %d active", feature.Plural(int(p.GetFlows()), "flow"), p.GetActive())}
	if n := p.GetUnsynchronised(); n > 0 && len(p.GetPeers()) > 0 {
		parts[0] += fmt.Sprintf(", %d that no peer can take over", n)
	}
	for _, peer := range p.GetPeers() {
		switch {
		case !peer.GetConnected():
			parts = append(parts, peer.GetAddress()+" is not connected")
		case peer.GetBehind() > 0:
			parts = append(parts, fmt.Sprintf("%s is %s behind", peer.GetAddress(),
				feature.Plural(int(peer.GetBehind()), "flow")))
		default:
			parts = append(parts, peer.GetAddress()+" knows all")
		}
	}
	return strings.Join(parts, "; ")
}
