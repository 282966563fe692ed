// Package ui is the web page of `myelin ui`: a server of its files, of flows as they happen, and of what else the page
// shows.
package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"

	apiv1 "myelin/api/v1"
)

// files are built from web by scripts/ui.sh.
//
//go:embed all:dist
var files embed.FS

// Limits of what browsers can have the server do.
const (
	maxStreams    = 16
	callTimeout   = 5 * time.Second
	headerTimeout = 5 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10
)

// Options say what the page shows. All but Hosts are required.
type Options struct {
	Log      *slog.Logger
	Observer observerpb.ObserverClient
	// Target is the address of the observer, for people.
	Target string
	Agent  apiv1.AgentClient
	// Socket is the agent's.
	Socket string
	// ObserverError and AgentError say what a failed call means.
	ObserverError, AgentError func(error) error
	// Hosts are names besides localhost and addresses by which browsers may ask for the page.
	Hosts []string
}

// Server serves the page.
type Server struct {
	Options
	streams streams
	open    atomic.Int32
}

// New returns a server.
func New(o Options) *Server { return &Server{Options: o} }

// Handler serves the page and what it asks for.
func (s *Server) Handler() (http.Handler, error) {
	dist, err := fs.Sub(files, "dist")
	if err != nil {
		return nil, fmt.Errorf("open the files of the page: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", cached(http.FileServerFS(dist)))
	mux.HandleFunc("GET /api/flows", s.flows)
	mux.HandleFunc("GET /api/flow", s.flow)
	mux.HandleFunc("GET /api/health", s.health)
	mux.HandleFunc("GET /api/trace", s.trace)
	return s.guard(mux), nil
}

// cached lets browsers keep the files whose names change with what is in them.
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		if strings.HasPrefix(r.URL.Path, "/assets/") {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		next.ServeHTTP(w, r)
	})
}

// Serve serves on a listener until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	handler, err := s.Handler()
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // streams end with it
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// answer writes a value as JSON.
func (s *Server) answer(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		s.refuse(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(data) // the browser has gone
}

// refuse answers with an error.
func (s *Server) refuse(w http.ResponseWriter, code int, err error) {
	data, _ := json.Marshal(map[string]string{"error": err.Error()}) // of strings: no error
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(data) // the browser has gone
}

// unknownField finds a parameter of a URL that nothing reads.
func unknownField(values url.Values, known ...string) error {
	for name := range values {
		if !containsFold(known, name) {
			return fmt.Errorf("%s: there is no such parameter", name)
		}
	}
	return nil
}
