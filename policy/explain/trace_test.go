package explain_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"myelin/policy"
	"myelin/policy/explain"
	"myelin/test/policy/policytest"
)

func tracer(t *testing.T, node string) *explain.Explainer {
	return explain.New(policytest.New(t, "testdata/cluster", node).Engine)
}

// TestTrace compares with testdata; "go test ./policy/explain -args update" writes it.
func TestTrace(t *testing.T) {
	tracers := map[string]*explain.Explainer{"n1": tracer(t, "n1"), "n3": tracer(t, "n3")}
	for _, c := range []struct{ name, node, from, to, port, verdict string }{
		{"allowed", "n1", "demo/client", "demo/web", "8080/TCP", explain.Allowed},
		{"named-port", "n1", "demo/client", "demo/web", "http/TCP", explain.Allowed},
		{"other-port", "n1", "demo/client", "demo/web", "9090", explain.Denied},
		{"other-peer", "n1", "demo/db", "demo/web", "8080/TCP", explain.Denied},
		{"world", "n1", "world", "demo/web", "443", explain.Denied},
		{"prefix", "n1", "198.51.100.7", "demo/web", "443", explain.Allowed},
		{"prefix6", "n1", "2001:db8::7", "demo/web", "80", explain.Denied},
		{"deny-rule", "n1", "demo/client", "demo/db", "22/TCP", explain.Denied},
		{"cilium", "n1", "198.51.100.7", "demo/db", "22/TCP", explain.Denied},
		{"not-isolated", "n1", "demo/web", "demo/client", "80/UDP", explain.Allowed},
		{"service", "n1", "demo/client", "demo/shop", "80", explain.Allowed},
		{"service-address", "n1", "demo/db", "10.96.0.10", "80", explain.Denied},
		{"unenforced", "n1", "demo/db", "198.51.100.7", "443", explain.Denied},
		{"node", "n1", "node/n2", "demo/db", "1/TCP", explain.Allowed},
		{"other-node", "n1", "host", "demo/db", "1/TCP", explain.Denied},
		{"elsewhere", "n3", "demo/client", "demo/web", "8080", explain.Allowed},
	} {
		got, err := tracers[c.node].Trace(explain.Request{From: c.from, To: c.to, Port: c.port})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got.Verdict != c.verdict {
			t.Errorf("%s: %s, want %s\n%s", c.name, got.Verdict, c.verdict, got)
		}
		compare(t, c.name, got)
	}
}

// compare compares an answer with testdata.
func compare(t *testing.T, name string, got *explain.Trace) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if slices.Contains(flag.Args(), "update") {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got.String() {
		t.Errorf("%s: got\n%s\nwant\n%s%v", name, got, want, err)
	}
	data, err := json.Marshal(got)
	var back explain.Trace
	if err != nil || json.Unmarshal(data, &back) != nil || !reflect.DeepEqual(&back, got) {
		t.Errorf("%s: as JSON it is another: %v, %s", name, err, data)
	}
}

// TestTraceProxied asks about flows that the proxy decides on.
func TestTraceProxied(t *testing.T) {
	tr := explain.New(policytest.Open(t, "testdata/proxied", "n1", t.TempDir(), policy.Config{Proxy: true}).Engine)
	const web, dns, world = "80", "53/UDP", "198.51.100.7"
	for _, c := range []struct {
		name, to, port, fqdn string
		content              explain.Content
		verdict              string
	}{
		{"redirected", "demo/web", web, "", explain.Content{}, explain.Redirected},
		{"get", "demo/web", web, "", explain.Content{HTTP: "GET /public/x"}, explain.Allowed},
		{"whole", "demo/web", web, "", explain.Content{HTTP: "GET /x/public/x"}, explain.Denied},
		{"post", "demo/web", web, "", explain.Content{HTTP: "POST /public/x"}, explain.Denied},
		{"either", "demo/web", web, "", explain.Content{HTTP: "PUT /b", Host: "web.demo"}, explain.Allowed},
		{"host", "demo/web", web, "", explain.Content{HTTP: "PUT /b", Host: "other"}, explain.Denied},
		{"no-host", "demo/web", web, "", explain.Content{HTTP: "PUT /b"}, explain.Redirected},
		{"header", "demo/web", web, "", explain.Content{HTTP: "GET /c", Headers: []string{"x-a: 1", "X-B:2"}},
			explain.Allowed},
		{"no-header", "demo/web", web, "", explain.Content{HTTP: "GET /c", Headers: []string{"X-A: 2", "X-B: 2"}},
			explain.Denied},
		{"secret", "demo/web", web, "", explain.Content{HTTP: "GET /s", Headers: []string{"X-Token: x"}},
			explain.Redirected},
		{"query", "demo/web", dns, "", explain.Content{DNS: "api.a.example."}, explain.Allowed},
		{"other-query", "demo/web", dns, "", explain.Content{DNS: "b.example"}, explain.Denied},
		{"named", world, "443", "x.a.example", explain.Content{}, explain.Allowed},
		{"not-named", world, "443", "", explain.Content{}, explain.Denied},
		{"other-name", world, "443", "a.example.org", explain.Content{}, explain.Denied},
		{"server-name", world, "444", "", explain.Content{Host: "tls.example"}, explain.Allowed},
		{"other-server", world, "444", "", explain.Content{Host: "other"}, explain.Denied},
		{"no-server", world, "444", "", explain.Content{}, explain.Redirected},
	} {
		content, err := explain.ParseContent(c.content)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tr.Trace(explain.Request{From: "demo/client", To: c.to, Port: c.port, FQDN: c.fqdn,
			Content: content})
		if err != nil {
			t.Fatal(err)
		}
		if got.Verdict != c.verdict {
			t.Errorf("%s: %s, want %s\n%s", c.name, got.Verdict, c.verdict, got)
		}
		if slices.Contains([]string{"redirected", "post", "either", "query", "named"}, c.name) {
			compare(t, "proxied-"+c.name, got)
		}
	}
	for _, bad := range []explain.Content{{HTTP: "/x"}, {HTTP: "GET x"}, {Headers: []string{"A: b"}},
		{HTTP: "GET /", Headers: []string{"A"}}} {
		if c, err := explain.ParseContent(bad); err == nil {
			t.Errorf("%+v is taken as %+v", bad, c)
		}
	}
}

func TestTraceErrors(t *testing.T) {
	tr := tracer(t, "n1")
	for _, c := range [][4]string{
		{"demo/nobody", "demo/web", "80", "--from demo/nobody: there is no pod demo/nobody"},
		{"demo/web", "demo/nobody", "80", "--to demo/nobody: there is no pod and no Service demo/nobody"},
		{"all", "demo/web", "80", "--from all: is many"},
		{"node/n9", "demo/web", "80", "there is no node n9"},
		{"demo/client", "demo/web", "70000", `--port 70000: "70000" is no port`},
		{"demo/client", "demo/web", "80/TPC", `"TPC" is no protocol`},
		{"demo/client", "demo/web", "https/TCP", "demo/web has no port of that name"},
		{"demo/client", "demo/shop", "8080", "Service demo/shop has web:80/TCP, admin:81/TCP"},
		{"demo/client", "demo/shop", "81", "the Service has no backends"},
		{"2001:db8::1", "demo/db", "80", "no family of addresses in common"},
		{"", "demo/db", "80", "--from : must be set"},
	} {
		if _, err := tr.Trace(explain.Request{From: c[0], To: c[1], Port: c[2]}); err == nil ||
			!strings.Contains(err.Error(), c[3]) {
			t.Errorf("%v: got %v", c[:3], err)
		}
	}
}

func TestParseFlow(t *testing.T) {
	for text, want := range map[string]explain.Request{
		"10.0.1.2:4000->10.0.2.2:80/TCP":      {From: "10.0.1.2", To: "10.0.2.2", Port: "80/TCP"},
		"[fd00::1]:4000 → [fd00::2]:53/UDP":   {From: "fd00::1", To: "fd00::2", Port: "53/UDP"},
		"fd00::1->[fd00::2]:128/ICMPv6":       {From: "fd00::1", To: "fd00::2", Port: "128/ICMPv6"},
		"::ffff:10.0.1.2->10.0.2.2:5000/SCTP": {From: "10.0.1.2", To: "10.0.2.2", Port: "5000/SCTP"},
	} {
		if got, err := explain.ParseFlow(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "10.0.1.2", "x->10.0.2.2:80/TCP", "10.0.1.2->10.0.2.2/TCP",
		"10.0.1.2->10.0.2.2:80", "10.0.1.2->[fd00::2]:80/TCP", "10.0.1.2->10.0.2.2:80/X"} {
		if got, err := explain.ParseFlow(bad); err == nil {
			t.Errorf("%q is taken as %+v", bad, got)
		}
	}
}
