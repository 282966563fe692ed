package chart

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/hubble/eventtype"
	"myelin/hubble/metrics"
	"myelin/hubble/options"
)

// dashboard is what the test needs of Grafana's model.
type dashboard struct {
	UID           string  `json:"uid"`
	Title         string  `json:"title"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct {
			Name string `json:"name"`
			Type string `json:"type"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID         int        `json:"id"`
	Type       string     `json:"type"`
	Title      string     `json:"title"`
	Datasource *reference `json:"datasource"`
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct {
		RefID      string     `json:"refId"`
		Expr       string     `json:"expr"`
		Legend     string     `json:"legendFormat"`
		Datasource *reference `json:"datasource"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

type reference struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("myelin/files/hubble-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// exported are the labels of each metric that flows of all kinds have had exported, as a scrape shows them.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	list, err := options.Metrics([]string{"drop", "flow", "flows-to-world", "icmp", "policy", "port-distribution",
		"tcp"})
	if err != nil {
		t.Fatal(err)
	}
	m := metrics.New(metrics.Params{Metrics: list})
	ip := &flowpb.IP{Source: "10.0.0.1", Destination: "192.0.2.1", IpVersion: flowpb.IPVersion_IPv4}
	port := &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{
		SourcePort: 4000, DestinationPort: 80, Flags: &flowpb.TCPFlags{SYN: true}}}}
	echo := &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv4{ICMPv4: &flowpb.ICMPv4{Type: 8}}}
	world := &flowpb.Endpoint{Labels: []string{"reserved:world"}}
	for _, f := range []*flowpb.Flow{
		{Verdict: flowpb.Verdict_FORWARDED, EventType: &flowpb.CiliumEventType{Type: eventtype.Trace}, IP: ip, L4: port,
			Destination: world, IsReply: wrapperspb.Bool(false)},
		{Verdict: flowpb.Verdict_DROPPED, EventType: &flowpb.CiliumEventType{Type: eventtype.Drop}, IP: ip, L4: echo},
		{Verdict: flowpb.Verdict_DROPPED, EventType: &flowpb.CiliumEventType{Type: eventtype.PolicyVerdict}, IP: ip},
	} {
		m.Consume(f)
	}
	m.Lost(&flowpb.LostEvent{NumEventsLost: 1})
	w := httptest.NewRecorder()
	m.Handler(slog.Default()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	out := map[string][]string{}
	sample, label := regexp.MustCompile(`^(\w+)\{(.*)\} `), regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(w.Body.String()) {
		s := sample.FindStringSubmatch(line)
		if s == nil {
			continue
		}
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			out[s[1]] = append(out[s[1]], l[1])
		}
	}
	return out
}

// TestDashboard: each panel asks only for metrics and labels that there are, and has its own place.
func TestDashboard(t *testing.T) {
	d, have := readDashboard(t), exported(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Error("no dashboard of Grafana", d.UID, d.Title, d.SchemaVersion)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	seen, used := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if p.Title == "" || seen[p.ID] {
			t.Errorf("panel %d: no title, or the id of another: %q", p.ID, p.Title)
		}
		seen[p.ID] = true
		for _, q := range d.Panels[:i] {
			if a, b := p.GridPos, q.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q lies over %q", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		checkPanel(t, p, have, used, variables)
	}
	for name := range have {
		if !used[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// checkPanel checks what a panel asks for. used gets the metrics.
func checkPanel(t *testing.T, p panel, have map[string][]string, used map[string]bool, variables []string) {
	t.Helper()
	if len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("%q: no query, or no unit", p.Title)
	}
	metric := regexp.MustCompile(`\b(hubble_\w+)\{([^}]*)\}`)
	matcher, by := regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`), regexp.MustCompile(`by \(([^)]*)\)`)
	variable, legend := regexp.MustCompile(`\$\{?(\w+)`), regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, q := range p.Targets {
		if q.Datasource == nil || q.Datasource.UID != "${DS_PROMETHEUS}" || p.Datasource == nil {
			t.Errorf("%q %s: its data source is not the variable", p.Title, q.RefID)
		}
		labels := []string{"node", "instance"} // of the scrape
		asked := []string{}
		for _, m := range metric.FindAllStringSubmatch(q.Expr, -1) {
			if have[m[1]] == nil {
				t.Errorf("%q: there is no metric %s", p.Title, m[1])
			}
			used[m[1]] = true
			labels = append(labels, have[m[1]]...)
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				asked = append(asked, l[1])
			}
		}
		grouped := []string{}
		for _, m := range by.FindAllStringSubmatch(q.Expr, -1) {
			grouped = append(grouped, strings.Split(m[1], ", ")...)
		}
		for _, l := range legend.FindAllStringSubmatch(q.Legend, -1) {
			if !slices.Contains(grouped, l[1]) {
				t.Errorf("%q: the legend has %s, the query no such label", p.Title, l[1])
			}
		}
		for _, l := range append(asked, grouped...) {
			if !slices.Contains(labels, l) {
				t.Errorf("%q: no metric of %s has the label %q", p.Title, q.Expr, l)
			}
		}
		for _, v := range variable.FindAllStringSubmatch(q.Expr, -1) {
			if !strings.HasPrefix(v[1], "__") && !slices.Contains(variables, v[1]) {
				t.Errorf("%q: there is no variable %s", p.Title, v[1])
			}
		}
	}
}
