package agent

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"myelin/cluster"
	"myelin/config"
	"myelin/endpoint"
)

func TestHealth(t *testing.T) {
	var ready atomic.Int64
	var draining atomic.Bool
	p := &progress{}
	h := &health{
		log: slog.New(slog.DiscardHandler), progress: p,
		ready: func() time.Duration { return time.Duration(ready.Load()) },
		draining: func() string {
			if draining.Load() {
				return "draining since noon"
			}
			return ""
		},
	}
	s := httptest.NewServer(h)
	defer s.Close()
	get := func() (int, string) {
		t.Helper()
		r, err := http.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	p.starting("own node")
	if code, body := get(); code != http.StatusServiceUnavailable || !strings.Contains(body, "starting own node for ") {
		t.Errorf("%d %s", code, body)
	}
	p.waitsFor("no Node", "")
	if code, body := get(); code != http.StatusServiceUnavailable || !strings.Contains(body, "no Node") {
		t.Errorf("%d %s", code, body)
	}
	ready.Store(1)
	if code, body := get(); code != http.StatusOK || body != "{\"status\":\"ok\"}\n" {
		t.Errorf("%d %s", code, body)
	}
	draining.Store(true)
	if code, body := get(); code != http.StatusServiceUnavailable ||
		body != "{\"status\":\"draining\",\"reasons\":[\"draining since noon\"]}\n" {
		t.Errorf("%d %s", code, body)
	}
}

// TestMetricsBeforeReady: parts that are not there yet must not be asked.
func TestMetricsBeforeReady(t *testing.T) {
	m := newMetrics(agentWith(config.Default()))
	s := httptest.NewServer(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), "myelin_version{") ||
		strings.Contains(string(body), "myelin_bpf_map") {
		t.Errorf("%d %v: %s", r.StatusCode, err, body)
	}
}

func TestRowState(t *testing.T) {
	for want, row := range map[string]any{
		"error": &endpoint.Endpoint{Status: reconciler.StatusError(io.EOF)},
		"done":  &endpoint.Endpoint{Status: reconciler.StatusDone()},
		"":      &cluster.Problem{},
	} {
		if got := rowState(row); got != want {
			t.Errorf("%T: %q, want %q", row, got, want)
		}
	}
	if got := rowState(7); got != "" {
		t.Errorf("a number has the state %q", got)
	}
}
