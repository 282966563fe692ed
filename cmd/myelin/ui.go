package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"myelin/hubble/ui"
	"myelin/internal/logs"
)

// uiFlags are the flags of `myelin ui`.
type uiFlags struct {
	observerFlags
	listen string
	hosts  []string
}

func uiCommand() *cobra.Command {
	f := &uiFlags{}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a web page with a live map of services, flows, and the health of nodes",
		Long: "Serves a web page that shows the flows of this node, or with --server of all nodes of a relay: " +
			"a live map of services, a table of flows, each with the rule that decided, and the health of nodes. " +
			"Maps, and `policy trace` for a flow, are asked from the agent at --socket. The page only reads and " +
			"has no login: whoever reaches the address sees the flows, on loopback every user of this machine.",
		Example: "  myelin ui\n  myelin ui --server localhost:4245 --listen 127.0.0.1:12000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return f.run(ctx, cmd)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.listen, "listen", "127.0.0.1:12000", "address to serve on; port 0: any that is free")
	cmd.Flags().StringSliceVar(&f.hosts, "host", nil,
		"name in URLs of the page, besides localhost and addresses; may be repeated")
	return cmd
}

func (f *uiFlags) run(ctx context.Context, cmd *cobra.Command) error {
	observer, doneObserver, err := f.dial()
	if err != nil {
		return err
	}
	defer doneObserver()
	agent, doneAgent, err := dial(f.socket)
	if err != nil {
		return err
	}
	defer doneAgent()
	log, err := logs.New(os.Stderr, logs.Text, false, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	if a, err := netip.ParseAddrPort(l.Addr().String()); err == nil && !a.Addr().Unmap().IsLoopback() {
		fmt.Fprintf(cmd.ErrOrStderr(), "myelin: %s can be reached from other machines, and the page has no login\n", a)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the page is at http://%s/\n", l.Addr())
	return ui.New(ui.Options{
		Log: log, Observer: observer, Target: f.target(), Agent: agent, Socket: f.socket,
		ObserverError: f.explain, AgentError: func(err error) error { return agentError(err, f.socket) },
		Hosts: f.hosts,
	}).Serve(ctx, l)
}
