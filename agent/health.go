package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// health answers /healthz, and /metrics where they are asked for, on loopback.
type health struct {
	log      *slog.Logger
	ready    func() time.Duration
	progress *progress
	servers  []*http.Server
}

// httpTimeout bounds reading a request and writing an answer.
const httpTimeout = 10 * time.Second

// startHealth comes before everything else: a start that hangs must be seen. A
// port that is taken is no reason to leave pods without a network.
func (a *Agent) startHealth(context.Context) error {
	a.metrics = newMetrics(a)
	a.health.log, a.health.ready, a.health.progress = a.log, a.readyAfter, &a.progress
	metrics := promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)})
	if port := a.config.HealthPort; port != 0 {
		mux := http.NewServeMux()
		mux.Handle("GET /healthz", &a.health)
		mux.Handle("GET /metrics", metrics)
		a.health.serve("health", port, mux)
	}
	if a.config.Prometheus.Enabled {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics)
		a.health.serve("prometheus", a.config.Prometheus.Port, mux)
	}
	return nil
}

// serve listens on the loopback addresses that there are.
func (h *health) serve(name string, port uint16, handler http.Handler) {
	var errs []error
	listening := false
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		listening = true
		s := &http.Server{Handler: handler, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)}
		h.servers = append(h.servers, s)
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				h.log.Error("HTTP is not served any more", "what", name, "error", err)
			}
		}()
	}
	if !listening {
		h.log.Error("HTTP is not served", "what", name, "error", errors.Join(errs...))
	}
}

func (h *health) stop() {
	for _, s := range h.servers {
		s.Close()
	}
}

// reasons say why the agent is not ready.
func (h *health) reasons() []string {
	if h.ready() > 0 {
		return nil
	}
	return []string{"starting " + h.progress.said()}
}

// ServeHTTP answers /healthz: 200 when the agent is ready, else 503 with the
// reasons.
func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons,omitempty"`
	}{Status: "ok", Reasons: h.reasons()}
	code := http.StatusOK
	if body.Reasons != nil {
		body.Status, code = "starting", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
