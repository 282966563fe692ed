package labtest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestProgrammed: in a cluster, Services come by API beside those of manifests, and an operator's word on a backend of
// either outlives the agent.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│  a1 s1  │  │  a2 s2  │     default/web, by manifests: s1, s2
//	└────┬────┘  └────┬────┘     ext, by API on node1: world
//	═════╧════════════╧═════ world
func TestProgrammed(t *testing.T) {
	t.Parallel()
	c := up(t, setup{pods: []string{"a"}, values: map[string]any{"socketLB.enabled": true}})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	// The address is ext's, which is older than a Service that doesn't say when it was made.
	c.apply("web", serviceYAML("web", 10, "  externalIPs: [192.0.2.10]\n")+c.slicesYAML("web", "s1", "s2"))
	myelin := func(args ...string) string {
		t.Helper()
		out, err := c.Node("node1").Exec(t.Context(), append([]string{"myelin"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	upsert := []string{"service", "upsert", "ext"}
	for i, f := range []int{4, 6} {
		upsert = append(upsert, "--frontend", vips()[i].String(), "--backend",
			netip.AddrPortFrom(c.end("world").addr(f), 8080).String())
	}
	myelin(upsert...)
	for _, from := range []string{"default/a1", "node1"} {
		for _, vip := range vips() {
			c.answeredBy(from, "http://"+vip.String()+"/", "world")
		}
	}
	eventually(t, "web knows that its address is taken", 5*time.Second, func() error {
		if out := myelin("service", "get", "default/web"); !strings.Contains(out,
			"192.0.2.10:80/TCP is ext's already") {
			return fmt.Errorf("got %s", out)
		}
		return nil
	})
	for _, f := range []int{4, 6} {
		myelin("backend", "set", netip.AddrPortFrom(c.end("s1").addr(f), 8080).String(), "--state", "maintenance")
	}
	web := func() {
		t.Helper()
		for _, f := range []int{4, 6} {
			c.answeredBy("default/a1", url("http", serviceAddr(10, f), 80), "default/s2")
		}
	}
	web()
	if err := c.Node("node1").KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Node("node1").StartAgent(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	web()
	c.answeredBy("default/a1", "http://"+vips()[1].String()+"/", "world")
}

// answeredBy waits until eight calls in a row have one server.
func (c *cluster) answeredBy(from, url, want string) {
	c.t.Helper()
	eventually(c.t, from+" calls "+url, 10*time.Second, func() error {
		for range 8 {
			if got, err := c.call(from, url); err != nil || got != want {
				return fmt.Errorf("answered by %q, %v, want %s", got, err, want)
			}
		}
		return nil
	})
}
