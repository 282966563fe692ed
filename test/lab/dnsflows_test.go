package labtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestDNSFlows has a pod ask for a name again and again with Hubble on: its messages pass without the proxy, and each
// query and each answer is a flow, also while the agent is dead.
//
//	┌─ node1 ──┐
//	│ backend  │
//	└────┬─────┘
//	═════╧════════════ world: resolver
func TestDNSFlows(t *testing.T) {
	const queries = 50
	c := up(t, setup{yaml: namedPods()})
	s := &movingServer{}
	c.serveZone(s)
	c.acceptAll(443)
	c.refusesQuery("1.example.com.", "the policy is enforced")
	for _, f := range []int{4, 6} {
		want := numbered(f, 1)
		c.passes(f, want)
		ask := func(when string) {
			before := c.proxy("node1").Passed
			for range queries / 2 {
				c.resolvesNumber(f, want, when)
			}
			if n := c.proxy("node1").Passed - before; n != queries/2 {
				t.Errorf("IPv%d, %s: %d of %d queries have passed without the proxy", f, when, n, queries/2)
			}
		}
		// Records have the time of the kernel's clock: that of the last query before may be some ms later than ours.
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		ask("with an agent")
		check(t, c.Node("node1").KillAgent(t.Context()))
		ask("without an agent")
		check(t, c.Node("node1").StartAgent(t.Context(), nil))
		eventually(t, "flows of all messages", 10*time.Second, func() error {
			flows := c.mustCLI("node1", "observe", "--all", "--since", begun.UTC().Format(time.RFC3339Nano), "--type",
				"l7", fmt.Sprintf("-%d", f))
			for _, text := range []string{"dns-request proxy FORWARDED (DNS Query 1.amazonaws.com.)",
				fmt.Sprintf("dns-response proxy FORWARDED (DNS Answer %s (1.amazonaws.com.))", want)} {
				if n := strings.Count(flows, text); n != queries {
					return fmt.Errorf("IPv%d: %d flows with %q, want %d:\n%s", f, n, text, queries, flows)
				}
			}
			return nil
		})
		answers := c.mustCLI("node1", "observe", "--last", "1", "--type", "l7", fmt.Sprintf("-%d", f), "-o", "json")
		for _, field := range []string{`"latency_ns":`, `"qtypes":["A`, `"rrtypes":["A`, `"ttl":60`} {
			contains(t, "the last answer", answers, field)
		}
	}
}
