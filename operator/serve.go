package operator

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpTimeout bounds reading a request and writing an answer.
const httpTimeout = 10 * time.Second

// Handler serves /healthz, which says that the process lives and what it is at, and
// /metrics where there is a Registry. What fails at the server doesn't make it unhealthy: a new
// process would fare no better.
func (o *Operator) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		leading, problem := o.State()
		body := struct {
			Status  string `json:"status"`
			Leading bool   `json:"leading"`
			Problem string `json:"problem,omitempty"`
		}{Status: "ok", Leading: leading}
		if problem != nil {
			body.Problem = problem.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body) // the client may be gone
	})
	if o.Registry != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry,
			promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn)}))
	}
	return http.TimeoutHandler(mux, httpTimeout, "")
}
