package ui

import (
	"net/http"
	"strings"
	"testing"
)

func TestGuard(t *testing.T) {
	web := serve(t, &observer{})
	host := strings.TrimPrefix(web.URL, "http://")
	for name, c := range map[string]struct {
		path   string
		header []string
		want   int
	}{
		"page":             {"/", nil, 200},
		"localhost":        {"/", []string{"Host", "localhost:12000"}, 200},
		"IPv6":             {"/", []string{"Host", "[::1]:12000"}, 200},
		"name of --host":   {"/", []string{"Host", "Flows.Example"}, 200},
		"rebound name":     {"/api/health", []string{"Host", "evil.example:12000"}, 403},
		"almost localhost": {"/", []string{"Host", "localhost.evil.example"}, 403},
		"almost address":   {"/", []string{"Host", "127.0.0.1.evil.example"}, 403},
		"own origin":       {"/api/health", []string{"Origin", web.URL, "Sec-Fetch-Site", "same-origin"}, 200},
		"other origin":     {"/api/health", []string{"Origin", "http://evil.example"}, 403},
		"null origin":      {"/api/health", []string{"Origin", "null"}, 403},
		"other port":       {"/api/health", []string{"Origin", "http://127.0.0.1:1"}, 403},
		"other site":       {"/api/health", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"link to the page": {"/?verdict=DROPPED", []string{"Sec-Fetch-Site", "cross-site"}, 200},
		"outside of dist":  {"/../ui.go", nil, 404},
	} {
		if code, body := get(t, web.URL+c.path, c.header...); code != c.want {
			t.Errorf("%s (%s): %d, want %d: %s", name, host, code, c.want, body)
		}
	}
}

func TestMethodsAndHeaders(t *testing.T) {
	web := serve(t, &observer{})
	res, err := http.Post(web.URL+"/api/health", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", res.Status)
	}
	if res, err = http.Get(web.URL + "/"); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	csp := res.Header.Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy: %s", csp)
	}
	if res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", res.Header)
	}
}
