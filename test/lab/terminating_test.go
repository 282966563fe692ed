package labtest

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestTerminating has a pod terminate under its connections: they go on, new ones go elsewhere as long as there is
// somewhere else, and to it when nothing else is left. It ends when its object goes.
//
//	┌─ node1 ────────────────┐  ┌─ node2 ─┐
//	│ a1: holders, calls  s1 │  │ s2      │
//	└───────────┬────────────┘  └────┬────┘
//	════════════╧════════════════════╧═════
func TestTerminating(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), pods: []string{"a"}, values: map[string]any{"socketLB.enabled": true}})
	terminates := strings.Replace(serverYAML("s1", 1), "{name: s1,",
		`{name: s1, deletionTimestamp: "2026-01-02T03:04:05Z",`, 1)
	service := strings.Replace(serviceYAML("web", 10, "  selector: {app: web}\n"), "  ports:\n",
		"  ports:\n    - {name: echo, port: 7, targetPort: 7000}\n", 1)
	c.apply("one", serverYAML("s1", 1)+service)
	c.eventuallyAnswer("one is there", 10, "default/s1")
	var holders []*holder
	for _, f := range c.stack.families {
		for scheme, port := range map[string]uint16{"udp": 53, "tcp": 7} {
			holders = append(holders, c.hold("default/a1",
				scheme+"://"+netip.AddrPortFrom(serviceAddr(10, f), port).String()))
		}
	}
	goOn := func(when string) {
		t.Helper()
		now := time.Now()
		for _, h := range holders {
			if h.answered(1, now) {
				t.Errorf("%s: %s was ended", when, h.name)
			}
		}
	}
	goOn("one is there")
	c.apply("other", serverYAML("s2", 2))
	c.eventuallyAnswer("two are there", 10, "default/s1", "default/s2")
	c.apply("terminating", terminates)
	c.eventuallyAnswer("one of two terminates", 10, "default/s2")
	goOn("it terminates")
	if out, err := c.Node("node1").Exec(t.Context(), "myelin", "backend", "list"); err != nil ||
		!strings.Contains(out, "terminating") {
		t.Errorf("list of backends: %v\n%s", err, out)
	}
	if err := c.DeletePod(t.Context(), "s2"); err != nil {
		t.Fatal(err)
	}
	c.eventuallyAnswer("only what terminates is left", 10, "default/s1")
	goOn("nothing else is left")
	if err := c.DeletePod(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	c.eventuallyAnswer("nothing is left", 10)
}
