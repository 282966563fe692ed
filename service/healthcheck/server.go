// Package healthcheck serves the health check node ports of Services, as kube-proxy does.
package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/service"
)

// Server serves the health check node ports. It has the operations of the reconciler of table "health-checks".
// Responses are the same as kube-proxy's.
type Server struct {
	Log *slog.Logger
	// Listen opens a port, as net.Listen does.
	Listen func(network, address string) (net.Listener, error)

	mu    sync.Mutex
	ports map[cluster.Key]*port
}

type port struct {
	service cluster.Key
	port    uint16
	count   atomic.Int64
	server  *http.Server
	closed  chan struct{}
}

// Update opens a port, or updates the count of one that is open.
func (s *Server) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *service.Check) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.ports[row.Service]; p != nil && p.port == row.Port {
		p.count.Store(int64(row.LocalEndpoints))
		return nil
	}
	s.close(row.Service)
	// Without an address, the port is that of both families.
	l, err := s.Listen("tcp", ":"+strconv.Itoa(int(row.Port)))
	if err != nil {
		return fmt.Errorf("serve health check of %s: %w", row.Service, err)
	}
	p := &port{service: row.Service, port: row.Port, closed: make(chan struct{})}
	p.count.Store(int64(row.LocalEndpoints))
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	if s.ports == nil {
		s.ports = map[cluster.Key]*port{}
	}
	s.ports[row.Service] = p
	go func() {
		defer close(p.closed)
		if err := p.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.Log.Error("health check node port ended", "service", row.Service, "port", row.Port, "error", err)
		}
	}()
	return nil
}

// Delete closes a Service's port.
func (s *Server) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, row *service.Check) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close(row.Service)
	return nil
}

// Prune closes the ports without a row.
func (s *Server) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*service.Check, statedb.Revision]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[cluster.Key]bool{}
	for row := range rows {
		wanted[row.Service] = true
	}
	for k := range s.ports {
		if !wanted[k] {
			s.close(k)
		}
	}
	return nil
}

// Close closes all ports.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.ports {
		s.close(k)
	}
}

// close waits until the port is free, because another row may use it next.
func (s *Server) close(k cluster.Key) {
	if p := s.ports[k]; p != nil {
		p.server.Close()
		<-p.closed
		delete(s.ports, k)
	}
}

// ServeHTTP responds with 200 if this node has endpoints, else 503, on any path. The proxy is always reported as
// healthy, because the agent would not respond otherwise.
func (p *port) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	count := p.count.Load()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(count, 10))
	if count == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	const body = "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n" +
		"\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}\n"
	fmt.Fprintf(w, body, p.service.Namespace, p.service.Name, count)
}
