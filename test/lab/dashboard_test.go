package labtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// dashboardMetrics are those that the dashboard is for, as docs/observability.md enables them.
func dashboardMetrics() []string {
	return []string{"flow", "drop", "tcp", "port-distribution", "icmp", "policy", "flows-to-world"}
}

// TestDashboard has Prometheus's own parser read the queries of the Grafana dashboard: agents export each metric with
// each label that a query names, once there were flows of each kind.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│   a1    │  │   s2    │     of TCP, only port 8080 of s2 is open
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world
func TestDashboard(t *testing.T) {
	t.Parallel()
	c := up(t, setup{pods: []string{"a"}, values: map[string]any{"hubble.metrics.enabled": dashboardMetrics()}})
	closed, _, _ := strings.Cut(hubblePolicies, "---\n")
	c.apply("servers", serverYAML("s2", 2)+closed)
	queries := dashboardQueries(t)
	if len(queries) < 15 {
		t.Fatalf("the dashboard has %d queries", len(queries))
	}
	eventually(t, "agents export what the dashboard asks for", 30*time.Second, func() error {
		c.dashboardTraffic(t)
		have := map[string]map[string]bool{}
		for _, node := range []string{"node1", "node2"} {
			if err := c.scrape(node, have); err != nil {
				return err
			}
		}
		var missing []error
		for _, q := range queries {
			missing = append(missing, queryMatches(q, have))
		}
		return errors.Join(missing...)
	})
}

// dashboardTraffic: a connection that is allowed, one that is denied, pings, and one to the world.
func (c *cluster) dashboardTraffic(t *testing.T) {
	t.Helper()
	for _, f := range c.stack.families {
		s2 := c.end("default/s2").addr(f)
		_, _ = c.call("default/a1", url("http", s2, 8080)) // what is missing shows in the metrics
		_ = c.isDenied("default/a1", at(s2, 81))
		place, err := c.Find("default/a1")
		check(t, err)
		for _, to := range []netip.Addr{c.end("default/a2").addr(f), c.end("world").addr(f)} {
			_, _ = place.Exec(t.Context(), "ping", "-c1", "-W1", to.String())
		}
	}
}

// dashboardQueries are the expressions of the dashboard's panels and variables, with Grafana's variables replaced.
func dashboardQueries(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "chart/myelin/files/hubble-dashboard.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the tree is not here")
	}
	check(t, err)
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	check(t, json.Unmarshal(text, &dashboard))
	variables := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$node", "node.*")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			list = append(list, variables.Replace(target.Expr))
		}
	}
	return list
}

// hubbleMetrics are the metrics of flows that an agent exports.
func (c *cluster) hubbleMetrics(node string) (map[string]*dto.MetricFamily, error) {
	client := c.client(c.end(node))
	answer, err := client.Get("http://" + at(c.end(node).addr(4), 9965).String() + "/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of %s: %s", node, answer.Status)
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", node, err)
	}
	return families, nil
}

// scrape adds the metrics that an agent exports, with their labels.
func (c *cluster) scrape(node string, have map[string]map[string]bool) error {
	families, err := c.hubbleMetrics(node)
	if err != nil {
		return err
	}
	for name, family := range families {
		if have[name] == nil {
			have[name] = map[string]bool{"node": true, "instance": true} // of the scrape
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				have[name][l.GetName()] = true
			}
		}
	}
	return nil
}

// queryMatches wants each metric that a query selects to be exported, with the labels by which the query selects and
// groups.
func queryMatches(query string, have map[string]map[string]bool) error {
	expression, err := parser.ParseExpr(query)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	var problems []error
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		wanted := map[string]bool{}
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName {
				wanted[m.Name] = true
			}
		}
		for _, parent := range path {
			if a, ok := parent.(*parser.AggregateExpr); ok {
				for _, l := range a.Grouping {
					wanted[l] = true
				}
			}
		}
		if have[s.Name] == nil {
			problems = append(problems, fmt.Errorf("%s: no agent exports %s", query, s.Name))
			return nil
		}
		for _, l := range slices.Sorted(maps.Keys(wanted)) {
			if !have[s.Name][l] {
				problems = append(problems, fmt.Errorf("%s: %s has no label %s", query, s.Name, l))
			}
		}
		return nil
	})
	return errors.Join(problems...)
}

// TestDashboardQueries: queries that ask for too much are refused.
func TestDashboardQueries(t *testing.T) {
	have := map[string]map[string]bool{"hubble_drop_total": {"reason": true}}
	for query, want := range map[string]string{
		`sum by (reason) (rate(hubble_drop_total{reason="x"}[1m]))`:  "",
		`sum by (reason) (rate(hubble_drop_total{reason="x"}[1m])`:   "unclosed left parenthesis",
		`sum by (cause) (rate(hubble_drop_total[1m]))`:               "has no label cause",
		`rate(hubble_drop_total{cause="x"}[1m]) or vector(0)`:        "has no label cause",
		`topk(3, hubble_drop_total) / hubble_drops_total`:            "no agent exports hubble_drops_total",
		`label_replace(hubble_drop_total, "a", "$1", "reason", "+")`: "",
	} {
		err := queryMatches(query, have)
		if (want == "" && err != nil) || (want != "" && (err == nil || !strings.Contains(err.Error(), want))) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}
