package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/hubble/filter"
)

// observer sends flows that a request's filters match, then waits.
type observer struct {
	observerpb.UnimplementedObserverServer

	flows []*flowpb.Flow
	end   error // after them, nil: none
}

func (o *observer) GetFlows(req *observerpb.GetFlowsRequest, stream observerpb.Observer_GetFlowsServer) error {
	match, err := filter.Compile(req.GetWhitelist(), req.GetBlacklist())
	if err != nil {
		return err
	}
	for _, f := range o.flows {
		if match != nil && !match(f) {
			continue
		}
		if err := stream.Send(&observerpb.GetFlowsResponse{NodeName: f.GetNodeName(),
			ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: f}}); err != nil {
			return err
		}
	}
	if o.end != nil {
		return o.end
	}
	<-stream.Context().Done()
	return nil
}

// serve serves the page before an observer; there is no agent.
func serve(t *testing.T, o *observer) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	l, err := api.Listen(filepath.Join(dir, "hubble.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	observerpb.RegisterObserverServer(server, o)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	observers, err := api.Dial(filepath.Join(dir, "hubble.sock"))
	if err != nil {
		t.Fatal(err)
	}
	agents, err := api.Dial(filepath.Join(dir, "myelin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	same := func(err error) error { return err }
	handler, err := New(Options{
		Log: slog.New(slog.DiscardHandler), Observer: observerpb.NewObserverClient(observers), Target: "here",
		Agent: apiv1.NewAgentClient(agents), Socket: "there", ObserverError: same,
		AgentError: func(error) error { return errors.New("no agent answers") }, Hosts: []string{"flows.example"},
	}).Handler()
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(handler)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		_ = observers.Close()
		_ = agents.Close()
	})
	return web
}

// get returns the status and the body of an answer.
func get(t *testing.T, url string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// stream opens a stream, and returns its number and its batches until there are as many flows.
func stream(t *testing.T, web *httptest.Server, query string, flows uint64) (id string, lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+"/api/flows?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<24)
	var got uint64
	for got < flows && in.Scan() {
		var line struct {
			Stream string
			Flows  uint64
			Error  string
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, in.Text())
		}
		if line.Stream != "" {
			id = line.Stream
			continue
		}
		got += line.Flows
		lines = append(lines, in.Text())
	}
	if got != flows {
		t.Fatalf("%d flows, want %d: %v\n%s", got, flows, in.Err(), strings.Join(lines, "\n"))
	}
	return id, lines
}

// tcp is a flow between two pods of the namespace demo.
func tcp(from, to string, port uint32, verdict flowpb.Verdict) *flowpb.Flow {
	pod := func(name string) *flowpb.Endpoint {
		return &flowpb.Endpoint{Namespace: "demo", PodName: name + "-0",
			Workloads: []*flowpb.Workload{{Kind: "StatefulSet", Name: name}}}
	}
	return &flowpb.Flow{
		Time: timestamppb.Now(), Verdict: verdict, NodeName: "default/n1", Source: pod(from), Destination: pod(to),
		IP: &flowpb.IP{Source: "10.0.0.1", Destination: "10.0.0.2", IpVersion: flowpb.IPVersion_IPv4},
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 40000, DestinationPort: port}}},
	}
}

func TestStream(t *testing.T) {
	denied := tcp("client", "web", 80, flowpb.Verdict_DROPPED)
	denied.IngressDeniedBy = []*flowpb.Policy{{Kind: "NetworkPolicy", Namespace: "demo", Name: "closed"}}
	web := serve(t, &observer{flows: []*flowpb.Flow{tcp("client", "web", 80, flowpb.Verdict_FORWARDED),
		tcp("client", "db", 5432, flowpb.Verdict_FORWARDED), denied}})
	for query, want := range map[string][]string{
		"": {`"to":"StatefulSet|demo|db"`, `"dropped":1`}, "text=CLOSED": {`"DROPPED"`}, "pod=demo/db": {`5432`},
		"verdict=DROPPED":                {`"dropped":1`, "demo/closed (NetworkPolicy)"},
		"port=80,5432&verdict=FORWARDED": {"5432", ":80,"},
	} {
		flows := map[string]uint64{"": 3, "port=80,5432&verdict=FORWARDED": 2}[query]
		id, lines := stream(t, web, query, max(flows, 1))
		all := strings.Join(lines, "\n")
		for _, text := range want {
			if !strings.Contains(all, text) {
				t.Errorf("%q: no %s in %s", query, text, all)
			}
		}
		if query != "text=CLOSED" {
			continue
		}
		code, body := get(t, web.URL+"/api/flow?flow=0&stream="+id)
		for _, text := range []string{`"rule":"demo/closed (NetworkPolicy)"`, `"verdict":"DROPPED"`,
			`"command":"myelin policy trace --from demo/client-0 --to demo/web-0 --port 80/TCP"`} {
			if code != 200 || !strings.Contains(strings.ReplaceAll(body, `": "`, `":"`), text) {
				t.Errorf("details: %d, no %s in %s", code, text, body)
			}
		}
		if code, body = get(t, web.URL+"/api/flow?flow=1&stream="+id); code != 404 {
			t.Errorf("a flow that did not come: %d %s", code, body)
		}
	}
}

// What is wrong is refused with its name.
func TestWrongRequests(t *testing.T) {
	web := serve(t, &observer{})
	for path, want := range map[string]string{
		"/api/flows?port=http": "port http: want", "/api/flows?verdict=NO": "verdict NO",
		"/api/flows?x=1": "x: there is no", "/api/flows?pod=a&from-pod=b": "exclude",
		"/api/flows?text=" + strings.Repeat("x", 300): "text: 300 bytes",
		"/api/flow?stream=x&flow=1":                   `stream \"x\"`,
		"/api/flow?stream=1&flow=-1":                  `flow \"-1\"`, "/api/trace?from=a": "want from",
	} {
		if code, body := get(t, web.URL+path); code != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 400 and %s", path, code, body, want)
		}
	}
	if code, body := get(t, web.URL+"/api/trace?from=a&to=b&port=1/TCP"); code != 502 ||
		!strings.Contains(body, "no agent answers") {
		t.Errorf("no agent: %d %s", code, body)
	}
	if code, body := get(t, web.URL+"/api/health"); code != 200 || !strings.Contains(body, `"mapsError":"no agent`) ||
		!strings.Contains(body, "unimplemented") && !strings.Contains(body, "Unimplemented") {
		t.Errorf("health without an agent: %d %s", code, body)
	}
}

// The observer's error is the last batch.
func TestStreamEnds(t *testing.T) {
	web := serve(t, &observer{end: errors.New("no more")})
	if code, body := get(t, web.URL+"/api/flows"); code != 200 || !strings.Contains(body, "no more") {
		t.Errorf("%d %s", code, body)
	}
}

func TestTooManyStreams(t *testing.T) {
	web := serve(t, &observer{flows: []*flowpb.Flow{tcp("a", "b", 1, flowpb.Verdict_FORWARDED)}})
	for range maxStreams {
		stream(t, web, "", 1)
	}
	if code, body := get(t, web.URL+"/api/flows"); code != 503 || !strings.Contains(body, fmt.Sprint(maxStreams)) {
		t.Errorf("%d %s", code, body)
	}
}

func TestPageIsComplete(t *testing.T) {
	web := serve(t, &observer{})
	_, page := get(t, web.URL+"/")
	for _, attribute := range []string{`src="`, `href="`} {
		for _, part := range strings.Split(page, attribute)[1:] {
			path, _, _ := strings.Cut(part, `"`)
			if code, _ := get(t, web.URL+path); code != 200 || !strings.HasPrefix(path, "/") {
				t.Errorf("%s: %d, want a file of this server", path, code)
			}
		}
	}
	if !strings.Contains(page, `type="module"`) {
		t.Errorf("no script in %s", page)
	}
}
