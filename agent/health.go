package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"myelin/status"
)

// health answers /healthz on loopback, and /metrics there and where
// prometheus.enabled asks for it.
type health struct {
	log       *slog.Logger
	ready     func() time.Duration
	progress  *progress
	draining  func() string // why no new client must be sent here; empty: they can be
	listeners []*listener
}

// httpTimeout bounds reading a request and writing an answer.
const httpTimeout = 10 * time.Second

// startHealth comes before everything else: a start that hangs must be seen. A
// port that is taken is no reason to leave pods without a network: it is tried
// again, and the status tells of it.
func (a *agent) startHealth(context.Context) error {
	a.metrics = newMetrics(a)
	a.health.log, a.health.ready, a.health.progress = a.Log, a.readyAfter, &a.progress
	a.health.draining = a.balancer.draining
	metrics := promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelWarn),
	})
	if port := a.Config.HealthPort; port != 0 {
		mux := http.NewServeMux()
		mux.Handle("GET /healthz", &a.health)
		mux.Handle("GET /metrics", metrics)
		a.health.serve("health", []string{"127.0.0.1", "::1"}, port, mux)
	}
	if a.Config.Prometheus.Enabled {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics)
		a.health.serve("prometheus", []string{a.Config.Prometheus.Address}, a.Config.Prometheus.Port, mux)
	}
	return nil
}

// serve listens on addresses, of which "" is all that the node has. What can't be
// had now is tried again until stop.
func (h *health) serve(name string, addrs []string, port uint16, handler http.Handler) {
	for _, addr := range addrs {
		l := &listener{
			log: h.log, name: name, address: net.JoinHostPort(addr, strconv.Itoa(int(port))),
			handler: handler, retry: listenRetryMin,
		}
		l.start()
		h.listeners = append(h.listeners, l)
	}
}

func (h *health) stop() {
	for _, l := range h.listeners {
		l.stop()
	}
}

// listening is for the status: each address, and why nothing listens there.
func (h *health) listening() (list []status.Listener) {
	for _, l := range h.listeners {
		list = append(list, l.status())
	}
	return list
}

// state is "ok", or else what the agent is at, and why.
func (h *health) state() (state string, reasons []string) {
	if h.ready() == 0 {
		return "starting", []string{"starting " + h.progress.said()}
	}
	if why := h.draining(); why != "" {
		return "draining", []string{why}
	}
	return "ok", nil
}

// ServeHTTP answers /healthz: 200 when the agent is ready and not draining, else
// 503 with the reasons.
func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons,omitempty"`
	}{}
	code := http.StatusOK
	if body.Status, body.Reasons = h.state(); body.Reasons != nil {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
