package main

import (
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

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"myelin/api"
	"myelin/hubble/printer"
	"myelin/hubble/query"
	"myelin/internal/tlsfile"
)

// observerFlags say which observer to ask.
type observerFlags struct {
	socket, server, serverName string
	tls                        bool
	files                      tlsfile.Files
}

func (f *observerFlags) add(cmd *cobra.Command) {
	if cmd.Flags().Lookup("socket") == nil && cmd.PersistentFlags().Lookup("socket") == nil {
		socketFlag(cmd, &f.socket)
	}
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "HOST:PORT or unix:///PATH of an observer or relay, instead of the "+
		"agent's "+api.ObserverSocket)
	flags.BoolVar(&f.tls, "tls", false, "connect by TLS; also without the files below")
	flags.StringVar(&f.serverName, "tls-server-name", "", "name in the server's certificate")
	flags.StringSliceVar(&f.files.CAs, "tls-ca-cert-files", nil, "CAs of the server's certificate")
	flags.StringVar(&f.files.Cert, "tls-client-cert-file", "", "certificate for the server (mTLS)")
	flags.StringVar(&f.files.Key, "tls-client-key-file", "", "its key")
}

// target is the server's address for people.
func (f *observerFlags) target() string {
	if f.server != "" {
		return strings.TrimPrefix(f.server, "tls://")
	}
	return filepath.Join(filepath.Dir(f.socket), api.ObserverSocket)
}

// dial returns a client of the server, or of the agent's socket for observers.
func (f *observerFlags) dial() (client observerpb.ObserverClient, done func(), err error) {
	var conn *grpc.ClientConn
	if f.server == "" {
		conn, err = api.Dial(f.target())
	} else {
		var creds credentials.TransportCredentials = insecure.NewCredentials()
		if f.tls || f.target() != f.server || len(f.files.CAs) > 0 || f.files.Cert != "" || f.files.Key != "" {
			source := tlsfile.New(f.files)
			if err := source.Check(); err != nil {
				return nil, nil, fmt.Errorf("--tls-*: %w", err)
			}
			creds = source.ClientCredentials(f.serverName)
		}
		conn, err = grpc.NewClient(f.target(), grpc.WithTransportCredentials(creds))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("dial %s: %w", f.target(), err)
	}
	return observerpb.NewObserverClient(conn), func() { conn.Close() }, nil
}

// explain says what a failed call means.
func (f *observerFlags) explain(err error) error {
	switch s := status.Convert(err); {
	case err == nil:
		return nil
	case s.Code() == codes.Unavailable && f.server == "" && !fileExists(f.target()):
		return fmt.Errorf("no observer answers at %s: there is no such socket. Is `myelin agent` running with "+
			"hubble.enabled, or is a relay elsewhere (--server)?", f.target())
	case s.Code() == codes.Unavailable:
		return fmt.Errorf("no observer answers at %s: %s", f.target(), s.Message())
	default:
		return errors.New(s.Message())
	}
}

// each calls do for each response to a request, until the end or an error.
func (f *observerFlags) each(ctx context.Context, req *observerpb.GetFlowsRequest,
	do func(*observerpb.GetFlowsResponse) error) error {
	client, done, err := f.dial()
	if err != nil {
		return err
	}
	defer done()
	stream, err := client.GetFlows(ctx, req)
	if err != nil {
		return f.explain(err)
	}
	for {
		res, err := stream.Recv()
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return f.explain(err)
		}
		if err := do(res); err != nil {
			return err
		}
	}
}

type observeFlags struct {
	observerFlags
	query.Range
	printer.Options
	filters           query.Filters
	numeric, names    bool
	timeFormat, color string
	printFilters      bool
}

func observeCommand() *cobra.Command {
	f := &observeFlags{}
	cmd := &cobra.Command{
		Use:   "observe",
		Short: "Show flows: the last ones, those of a period, or as they happen",
		Long: "Shows flows of this node, or with --server of all nodes of a relay. Without a range it is " +
			"the last 20. " +
			"Values of one filter are alternatives, different filters must match together, and --not reverses " +
			"the next one. Flags have the names and the meaning of `hubble observe`; numbers count flows of " +
			"the whole " +
			"cluster.",
		Example: "  myelin observe --follow --verdict DROPPED\n" +
			"  myelin observe --pod default/web --not --protocol dns --since 5m\n" +
			"  myelin observe --server localhost:4245 --last 100 -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Uint64Var(&f.Last, "last", 0, "the last N flows (default 20)")
	flags.Uint64Var(&f.First, "first", 0, "the first N flows")
	flags.BoolVar(&f.All, "all", false, "all flows that are kept")
	flags.BoolVarP(&f.Follow, "follow", "f", false, "go on with flows as they happen")
	flags.StringVar(&f.Since, "since", "", "flows since how long ago (3s, 1h30m) or a time (2006-01-02T15:04:05Z)")
	flags.StringVar(&f.Until, "until", "", "flows until then")
	flags.StringVarP(&f.Form, "output", "o", printer.Compact, strings.Join(printer.Forms(), ", "))
	flags.BoolVar(&f.NodeName, "print-node-name", false, "show the node that reports")
	flags.BoolVar(&f.Policies, "print-policy-names", false, "show policies that decided")
	flags.BoolVar(&f.numeric, "numeric", false, "show addresses, not names")
	flags.BoolVar(&f.names, "ip-translation", true, "show names instead of addresses")
	flags.StringVar(&f.timeFormat, "time-format", "StampMilli", strings.Join(query.TimeFormats(), ", "))
	flags.StringVar(&f.color, "color", "auto", "auto, always or never")
	flags.BoolVar(&f.Debug, "debug", false, "show also which nodes are connected")
	flags.BoolVarP(&f.Silent, "silent-errors", "s", false, "show nothing about nodes")
	flags.BoolVar(&f.printFilters, "print-raw-filters", false, "print the request as JSON, and end")
	filterFlags(cmd, &f.filters)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(printer.Forms(),
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// filterFlag gives a filter its values in the order of the command line, which --not depends on.
type filterFlag struct {
	filters *query.Filters
	name    string
}

func (filterFlag) String() string { return "" }
func (filterFlag) Type() string   { return "filter" }
func (f filterFlag) Set(value string) error {
	if f.name == "not" {
		return f.filters.Not()
	}
	return f.filters.Add(f.name, value)
}

func filterFlags(cmd *cobra.Command, filters *query.Filters) {
	flags := cmd.Flags()
	flags.VarPF(filterFlag{filters, "not"}, "not", "", "reverse the next filter").NoOptDefVal = "true"
	for _, field := range query.Fields() {
		flag := flags.VarPF(filterFlag{filters, field.Name}, field.Name, field.Short, field.Help)
		flag.NoOptDefVal = field.Alone
		if len(field.Words) > 0 {
			_ = cmd.RegisterFlagCompletionFunc(field.Name, cobra.FixedCompletions(field.Words,
				cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

func (f *observeFlags) options(out io.Writer) (err error) {
	if !slices.Contains(printer.Forms(), f.Form) {
		return fmt.Errorf("-o %s: want %s", f.Form, strings.Join(printer.Forms(), ", "))
	}
	if f.Follow && (f.Form == printer.Table || f.Form == printer.Tab) {
		return fmt.Errorf("-o %s and --follow exclude each other: columns are as wide as all flows need", f.Form)
	}
	if f.TimeLayout, err = query.Layout(f.timeFormat); err != nil {
		return fmt.Errorf("--time-format %s: %w", f.timeFormat, err)
	}
	f.Names = f.names && !f.numeric
	switch f.color {
	case "always":
		f.Color = true
	case "auto":
		f.Color = isTerminal(out) && os.Getenv("NO_COLOR") == ""
	case "never":
	default:
		return fmt.Errorf("--color %s: want auto, always or never", f.color)
	}
	return nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

func (f *observeFlags) run(cmd *cobra.Command) error {
	if err := f.options(cmd.OutOrStdout()); err != nil {
		return err
	}
	req, err := f.Range.Request(&f.filters, time.Now())
	if err != nil {
		return err
	}
	if f.printFilters {
		return writeJSONLine(cmd.OutOrStdout(), req)
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	p := printer.New(f.Options, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err := f.each(ctx, req, p.Print); err != nil {
		_ = p.Close() // what came before the error is shown
		return err
	}
	return p.Close()
}

func writeJSONLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }
