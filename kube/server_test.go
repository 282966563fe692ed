package kube

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// account makes the files of a service account.
func account(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"token", "ca.crt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestNewServer: where the address comes from, and what is missing.
func TestNewServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: " +
		"'https://192.0.2.9:443'}}]\n" +
		"contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: x}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	for _, c := range []struct {
		o         Options
		env       map[string]string
		want      string // address, or what the error has
		byService bool
	}{
		{o: Options{KubeConfig: file}, want: "https://192.0.2.9:443"},
		{o: Options{KubeConfig: file, Host: "192.0.2.1"}, want: "https://192.0.2.1:6443"},
		{o: Options{KubeConfig: file, Host: "2001:db8::1", Port: 443}, want: "https://[2001:db8::1]:443"},
		{o: Options{KubeConfig: file, Host: "[2001:db8::1]"}, want: "https://[2001:db8::1]:6443"},
		{o: Options{KubeConfig: file, Host: "https://k8s.example/"}, want: "https://k8s.example:6443"},
		{o: Options{KubeConfig: file, Host: "a/b"}, want: `k8sServiceHost: "a/b" is no host`},
		{o: Options{KubeConfig: file + "x"}, want: "kubeConfigPath " + file + "x: "},
		{o: Options{Account: account(t)}, env: env, want: "https://10.96.0.1:443", byService: true},
		{o: Options{Account: account(t), Host: "192.0.2.1"}, env: env, want: "https://192.0.2.1:6443"},
		{o: Options{Account: account(t)}, want: "k8sServiceHost must be set"},
		{o: Options{Account: t.TempDir()}, env: env, want: "there is no service account"},
	} {
		c.o.Env = func(name string) string { return c.env[name] }
		s, err := NewServer(c.o)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = s.address()
		}
		if !strings.Contains(got, c.want) || err == nil && (got != c.want || s.byService != c.byService) {
			t.Errorf("%+v: got %s, want %s", c.o, got, c.want)
		}
	}
}

// TestContact: a server that accepts and doesn't answer has not answered, and one
// that is back is.
func TestContact(t *testing.T) {
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			<-done
		case "/broken":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	defer close(done)
	c := newContact()
	client := http.Client{Transport: &watched{next: http.DefaultTransport, contact: c, timeout: 100 * time.Millisecond}}
	get := func(what, problem string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/"+what, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := client.Do(req); err == nil {
			res.Body.Close()
		}
		if c.problem != problem || c.since.IsZero() != (problem == "") {
			t.Errorf("%s: problem %q since %s, want %q", what, c.problem, c.since, problem)
		}
	}
	get("silent", "no answer in 100ms")
	get("back", "")
	get("broken", "the server answers 503 Service Unavailable")
	if c.failed != 2 || c.last.IsZero() {
		t.Errorf("%d failed, last heard %s", c.failed, c.last)
	}
}
