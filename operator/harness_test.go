package operator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"myelin/config"
	"myelin/kube"
	"myelin/operator"
	"myelin/test/kube/apiserver"
)

// cluster is a real server.
type cluster struct {
	*testing.T

	server *apiserver.Server
}

// newCluster starts a server on which the operator has the rights that it is to have.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, server: apiserver.Start(t)}
	c.server.Grant(apiserver.Operator, "role.yaml")
	return c
}

// running is an operator in this process.
type running struct {
	*operator.Operator

	stop func()
	log  *apiserver.Log
}

// make makes an operator with a configuration file's text.
func (c *cluster) make(text string, change func(*operator.Params)) *running {
	c.Helper()
	conf, err := config.Parse([]byte(text), "test")
	if err != nil {
		c.Fatal(err)
	}
	server, err := kube.NewServer(kube.Options{KubeConfig: c.server.KubeConfig(apiserver.Operator), QPS: 100})
	if err != nil {
		c.Fatal(err)
	}
	r := &running{log: &apiserver.Log{}}
	p := operator.Params{
		Config: conf, Server: server, Log: slog.New(slog.NewTextHandler(r.log, nil)), Now: time.Now,
		Namespace: "kube-system", Identity: "test",
		Pace: 10 * time.Millisecond, CountPace: 200 * time.Millisecond, Registry: prometheus.NewRegistry(),
	}
	if change != nil {
		change(&p)
	}
	if r.Operator, err = operator.New(p); err != nil {
		c.Fatal(err)
	}
	return r
}

// run runs an operator that has no others beside it until stop, or the test's end.
func (c *cluster) run(text string) *running {
	c.Helper()
	return c.start(c.make(text, nil))
}

func (c *cluster) start(r *running) *running {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				c.Error(err)
			}
		case <-time.After(20 * time.Second):
			c.Error("the operator doesn't end")
		}
		if c.Failed() {
			c.Log(r.log)
		}
	})
	c.Cleanup(r.stop)
	return r
}

// eventually waits until f says nothing.
func (c *cluster) eventually(what string, f func() string) {
	c.Helper()
	apiserver.Eventually(c, what, f)
}

// put makes an object of YAML, at a path.
func (c *cluster) put(path, text string) {
	c.Helper()
	c.server.Apply(path, []byte(text))
}

// merge changes an object.
func (c *cluster) merge(path, text string) {
	c.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		c.Fatal(err)
	}
	c.server.Merge(path, raw)
}

// defined waits for the kinds.
func (c *cluster) defined() {
	c.Helper()
	for _, plural := range []string{"ciliumnodes", "ciliumloadbalancerippools", "ciliumnetworkpolicies",
		"ciliumclusterwidenetworkpolicies", "ciliumcidrgroups"} {
		c.eventually(plural+" are served", func() string {
			code, body := c.server.Try(http.MethodGet, "/apis/cilium.io/v2/"+plural, "", nil)
			if code == http.StatusOK {
				return ""
			}
			return fmt.Sprint(code, string(body))
		})
	}
}

// field is a part of what is at a path, as JSON; "" where there is nothing. Names and places of lists are
// separated by dots, and "[type=X]" finds an item.
func (c *cluster) field(path, field string) string {
	c.Helper()
	code, body := c.server.Try(http.MethodGet, path, "", nil)
	if code != http.StatusOK {
		return fmt.Sprint(code)
	}
	var at any
	if err := json.Unmarshal(body, &at); err != nil {
		c.Fatal(err)
	}
	for _, name := range strings.Fields(field) {
		switch v := at.(type) {
		case map[string]any:
			at = v[name]
		case []any:
			key, value, _ := strings.Cut(name, "=")
			at = nil
			for _, item := range v {
				if m, ok := item.(map[string]any); ok && m[key] == value {
					at = m
				}
			}
		}
	}
	if at == nil {
		return ""
	}
	text, err := json.Marshal(at)
	if err != nil {
		c.Fatal(err)
	}
	return strings.Trim(string(text), `"`)
}

// becomes waits until a field is what it should be.
func (c *cluster) becomes(path, field, want string) {
	c.Helper()
	c.eventually(path+" "+field, func() string {
		if got := c.field(path, field); got != want {
			return fmt.Sprintf("is %s, want %s", got, want)
		}
		return ""
	})
}

// contains waits until a field has a text in it.
func (c *cluster) contains(path, field, want string) {
	c.Helper()
	c.eventually(path+" "+field, func() string {
		if got := c.field(path, field); !strings.Contains(got, want) {
			return fmt.Sprintf("is %s, want %s", got, want)
		}
		return ""
	})
}

// metrics waits for a line.
func (c *cluster) metrics(r *running, want string) {
	c.Helper()
	c.eventually("metrics", func() string {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequestWithContext(c.Context(), http.MethodGet, "/metrics", nil))
		if body := w.Body.String(); !strings.Contains("\n"+body, "\n"+want+"\n") {
			return fmt.Sprintf("no %q in\n%s", want, body)
		}
		return ""
	})
}
