package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"myelin/api"
	"myelin/hubble/relay"
	"myelin/internal/logs"
	"myelin/internal/tlsfile"
)

// Ports of Hubble's relay.
const defaultRelay = "localhost:4245"

// relayFlags are the flags of `myelin relay`.
type relayFlags struct {
	peers, listen, name, logFormat string
	cluster, health, metrics       string
	debug                          bool
	buffer                         int
	drain, retry                   time.Duration
	client, server                 tlsfile.Files
	clientTLS                      bool
}

func relayCommand() *cobra.Command {
	f := &relayFlags{}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Serve the flows of all nodes by Hubble's API",
		Long: "The relay asks the peer service of one node for all nodes, connects to the observer of each, and " +
			"serves Hubble's API for all of them, in the order of time. Nodes that are lost are reported, and taken " +
			"in again when they answer. `myelin observe --server` and `hubble` are its clients.",
		Example: "  myelin relay --peer-service unix:///run/myelin/hubble.sock --listen :4245",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return f.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.peers, "peer-service", "unix://"+filepath.Join(filepath.Dir(api.DefaultSocket),
		api.ObserverSocket), "unix:///PATH or HOST:PORT of a node's peer service")
	flags.StringVar(&f.listen, "listen", defaultRelay, "address to serve on")
	flags.StringVar(&f.health, "health-listen", "", "address for gRPC's health service alone, without TLS; empty: none")
	flags.StringVar(&f.metrics, "metrics-listen", "", "address for /metrics, as :9966; empty: none")
	flags.StringVar(&f.name, "name", "", "of the relay in events about nodes (default "+nodeNameEnv+", or the host's)")
	flags.StringVar(&f.cluster, "cluster-name", "default",
		"of the cluster, in the name that the peer service's certificate must have")
	flags.IntVar(&f.buffer, "sort-buffer-len-max", 100, "responses of a node that a request keeps for sorting")
	flags.DurationVar(&f.drain, "sort-buffer-drain-timeout", time.Second,
		"how long a followed flow waits for earlier ones of silent nodes")
	flags.DurationVar(&f.retry, "retry-timeout", 2*time.Second, "between two attempts to connect")
	flags.BoolVar(&f.clientTLS, "tls", false, "connect to nodes by TLS; also without the files below")
	flags.StringVar(&f.client.Cert, "tls-hubble-client-cert-file", "", "certificate for nodes (mTLS)")
	flags.StringVar(&f.client.Key, "tls-hubble-client-key-file", "", "its key")
	flags.StringSliceVar(&f.client.CAs, "tls-hubble-server-ca-files", nil, "CAs of nodes' certificates")
	flags.StringVar(&f.server.Cert, "tls-relay-server-cert-file", "", "certificate for clients")
	flags.StringVar(&f.server.Key, "tls-relay-server-key-file", "", "its key")
	flags.StringSliceVar(&f.server.CAs, "tls-relay-client-ca-files", nil, "CAs of clients' certificates (mTLS)")
	addLogFormat(cmd, &f.logFormat)
	flags.BoolVar(&f.debug, "debug", false, "log more")
	return cmd
}

func (f *relayFlags) options() (relay.Options, error) {
	o := relay.Options{PeerService: f.peers, Version: buildVersion(), BufferLen: f.buffer, Drain: f.drain,
		Retry: f.retry, Cluster: f.cluster}
	switch {
	case f.buffer < 1:
		return o, fmt.Errorf("--sort-buffer-len-max %d: want 1 or more", f.buffer)
	case f.drain <= 0:
		return o, fmt.Errorf("--sort-buffer-drain-timeout %s: want more than 0", f.drain)
	case f.retry <= 0:
		return o, fmt.Errorf("--retry-timeout %s: want more than 0", f.retry)
	}
	if f.clientTLS || f.client.Cert != "" || f.client.Key != "" || len(f.client.CAs) > 0 {
		o.ClientTLS = tlsfile.New(f.client)
		if err := o.ClientTLS.Check(); err != nil {
			return o, fmt.Errorf("--tls-hubble-*: %w", err)
		}
	}
	if f.server.Cert != "" || f.server.Key != "" || len(f.server.CAs) > 0 {
		o.ServerTLS = tlsfile.New(f.server)
		if f.server.Cert == "" {
			return o, errors.New("--tls-relay-server-cert-file: must be set with --tls-relay-client-ca-files")
		}
		if err := o.ServerTLS.Check(); err != nil {
			return o, fmt.Errorf("--tls-relay-*: %w", err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return o, fmt.Errorf("find the host name: %w", err)
	}
	o.Name = cmp.Or(f.name, os.Getenv(nodeNameEnv), host)
	o.Log, err = logs.New(os.Stderr, cmp.Or(f.logFormat, logs.Text), f.debug, nil)
	return o, err
}

func (f *relayFlags) run(ctx context.Context) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	if f.health != "" {
		if o.Health, err = net.Listen("tcp", f.health); err != nil {
			return fmt.Errorf("--health-listen %s: %w", f.health, err)
		}
		defer o.Health.Close()
	}
	r, err := relay.New(o)
	if err != nil {
		return err
	}
	if f.metrics != "" {
		done, err := f.serveMetrics(r, o.Log)
		if err != nil {
			return err
		}
		defer done()
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.listen, err)
	}
	o.Log.Info("the relay serves", "address", l.Addr().String(), "peers", f.peers)
	return r.Serve(ctx, l)
}

// serveMetrics serves /metrics until done is called.
func (f *relayFlags) serveMetrics(r *relay.Relay, log *slog.Logger) (done func(), err error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.Collector(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return serveHTTP(f.metrics, mux, log)
}
