package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/lab"
)

// upForDemo brings the nodes of examples/two-nodes up, as docs/lab.md has it, with nothing on them.
func upForDemo(t *testing.T) *cluster {
	t.Helper()
	nodes, err := os.ReadFile(filepath.Join(root, "examples/two-nodes/nodes.yaml"))
	if err != nil {
		t.Skip("the tree is not here")
	}
	return up(
		t,
		setup{yaml: string(nodes), images: lab.ImagesServe, values: map[string]any{"kubeProxyReplacement": true}},
	)
}

// mustLab runs `myelin lab ARGS` and fails unless it succeeds and says everything of want.
func (c *cluster) mustLab(t *testing.T, stdin string, args []string, want ...string) string {
	t.Helper()
	out, status := c.labCommand(stdin, args...)
	if status != 0 {
		t.Fatalf("lab %s: exit status %d: %s", strings.Join(args, " "), status, out)
	}
	contains(t, "lab "+strings.Join(args, " "), out, want...)
	return out
}

func example(file string) string { return filepath.Join(root, "examples", file) }

// lands says whether a ship gets an answer of the deathstar within two seconds.
func (c *cluster) lands(ship, method, path string) bool {
	out, status := c.labCommand("", "exec", ship, "--", "curl", "-sS", "--noproxy", "*", "-m2", "-X"+method,
		"deathstar.default.svc.cluster.local"+path)
	return status == 0 && strings.HasPrefix(out, "server  default/deathstar-")
}

// TestStarWars is Cilium's demo: everybody lands until the policy is there, then the empire does, and with its HTTP
// rule that is all that the empire can do.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────┐
//	│ deathstar-…  tiefighter │  │ deathstar-…  xwing  │
//	└───────────┬─────────────┘  └──────────┬──────────┘
//	════════════╧═══════════════════════════╧═══════════
func TestStarWars(t *testing.T) {
	t.Parallel()
	c := upForDemo(t)
	app, err := os.ReadFile(example("star-wars/http-sw-app.yaml"))
	check(t, err)
	c.mustLab(t, string(app), []string{"apply", "-f", "-"},
		"service/default/deathstar created\n", "deployment/default/deathstar created\n",
		"pod/default/tiefighter created\n",
		"pod/default/xwing created\n", "image quay.io/cilium/starwars:v2.1 is not run; `myelin lab serve` stands in\n")
	contains(
		t,
		"get deployments",
		words(c.mustLab(t, "", []string{"get", "deployments", "deathstar"})),
		"deathstar 2/2 2 2 ",
	)
	const path = "/v1/request-landing"
	land := func(when string, want map[string]bool) {
		t.Helper()
		for ship, lands := range want {
			eventually(t, fmt.Sprintf("%s: %s lands: %t", when, ship, lands), 20*time.Second, func() error {
				if got := c.lands(ship, "POST", path); got != lands {
					return fmt.Errorf("it lands: %t", got)
				}
				return nil
			})
		}
	}
	land("without a policy", map[string]bool{"tiefighter": true, "xwing": true})

	c.mustLab(
		t,
		"",
		[]string{"apply", "-f", example("star-wars/sw_l3_l4_policy.yaml")},
		"ciliumnetworkpolicy/rule1 created\n",
	)
	land("with the policy", map[string]bool{"tiefighter": true, "xwing": false})

	c.mustLab(
		t,
		"",
		[]string{"apply", "-f", example("star-wars/sw_l3_l4_l7_policy.yaml")},
		"ciliumnetworkpolicy/rule1 configured\n",
	)
	land("with the HTTP rule", map[string]bool{"tiefighter": true, "xwing": false})
	c.exhaustPortClosed(t)

	c.mustLab(
		t,
		"",
		[]string{"apply", "-f", example("star-wars/sw_l3_l4_policy.yaml")},
		"ciliumnetworkpolicy/rule1 configured\n",
	)
	land("with the policy again", map[string]bool{"tiefighter": true, "xwing": false})
	contains(t, "logs", c.mustLab(t, "", []string{"logs", "deployment/deathstar"}), "stands in\n", "http on port 80\n")
}

// exhaustPortClosed waits until the proxy refuses the empire's request to the exhaust port.
func (c *cluster) exhaustPortClosed(t *testing.T) {
	t.Helper()
	eventually(t, "the exhaust port is closed", 20*time.Second, func() error {
		out, _ := c.labCommand("", "exec", "tiefighter", "--", "curl", "-sS", "--noproxy", "*", "-m2", "-XPUT",
			"deathstar.default.svc.cluster.local/v1/exhaust-port")
		if out != "Access denied\r\n" {
			return fmt.Errorf("the answer is %q", out)
		}
		return nil
	})
}

// TestGuestbook is Kubernetes' guestbook: its frontends reach Redis by name and by their environment, and the world
// reaches them by a node port that was allocated.
//
//	┌─ node1 ───────────────────┐  ┌─ node2 ───────────────────┐
//	│ frontend-… redis-…        │  │ frontend-… redis-…        │
//	└──────────────┬────────────┘  └──────────────┬────────────┘
//	══════╤════════╧══════════════════════════════╧═════════════
//	┌─────┴ world ┐
func TestGuestbook(t *testing.T) {
	t.Parallel()
	c := upForDemo(t)
	out := c.mustLab(t, "", []string{"apply", "-f", example("guestbook")},
		"image docker.io/redis:6.0.5 is not run; `myelin lab serve` stands in\n")
	for _, name := range []string{"redis-leader", "redis-follower", "frontend"} {
		contains(t, "apply", out, "deployment/default/"+name+" created\n", "service/default/"+name+" created\n")
	}
	contains(
		t,
		"get deployments",
		words(c.mustLab(t, "", []string{"get", "deploy"})),
		"frontend 3/3 3 3 ",
		"redis-follower 2/2 2 2 ",
		"redis-leader 1/1 1 1 ",
	)
	names := c.mustLab(t, "", []string{"get", "pods", "-o", "name"})
	if n := strings.Count(names, "pod/"); n != 6 {
		t.Errorf("%d pods: %s", n, names)
	}
	asks := func(from, what, server string, command ...string) {
		t.Helper()
		eventually(t, from+" asks "+what, 20*time.Second, func() error {
			out, status := c.labCommand("", slices.Concat([]string{"exec", from, "--"}, command)...)
			if status != 0 || !strings.HasPrefix(out, "server  default/"+server+"-") {
				return fmt.Errorf("exit status %d: %s", status, out)
			}
			return nil
		})
	}
	curl := "curl -sS --noproxy '*' -m2 "
	for frontend := range strings.Lines(c.mustLab(t, "", []string{"get", "pods", "-l", "app=guestbook", "-o",
		"name"})) {
		frontend = strings.TrimSpace(frontend)
		asks(frontend, "redis-leader", "redis-leader", "sh", "-c", curl+"redis-leader:6379")
		asks(frontend, "redis-follower, by its environment", "redis-follower", "sh", "-c",
			curl+"$REDIS_FOLLOWER_SERVICE_HOST:$REDIS_FOLLOWER_SERVICE_PORT")
	}
	service, err := os.ReadFile(example("guestbook/frontend-service.yaml"))
	check(t, err)
	outside := strings.Replace(string(service), "spec:\n", "spec:\n  type: NodePort\n", 1)
	c.mustLab(t, outside, []string{"apply", "-f", "-"}, "service/default/frontend configured\n")
	port := regexp.MustCompile(`80:(\d+)/TCP`).FindStringSubmatch(c.mustLab(t, "", []string{"get", "svc", "frontend"}))
	if port == nil {
		t.Fatal("the Service has no node port")
	}
	for node := range 2 {
		asks("world", "a node port", "frontend", "sh", "-c", fmt.Sprintf("%s192.168.64.%d:%s", curl, node+1, port[1]))
	}
	c.testGuestbookChanges(t)
}

// testGuestbookChanges scales a Deployment, restarts an agent, and removes everything.
func (c *cluster) testGuestbookChanges(t *testing.T) {
	before := c.mustLab(t, "", []string{"get", "svc", "-o", "yaml"})
	text, err := os.ReadFile(example("guestbook/frontend-deployment.yaml"))
	check(t, err)
	c.mustLab(
		t,
		strings.Replace(string(text), "replicas: 3", "replicas: 1", 1),
		[]string{"apply", "-f", "-"},
		"deployment/default/frontend configured\n",
	)
	contains(t, "scaled down", words(c.mustLab(t, "", []string{"get", "deploy", "frontend"})), "frontend 1/1 1 1 ")
	c.mustLab(t, "", []string{"agent", "restart", "node1"})
	if after := c.mustLab(t, "", []string{"get", "svc", "-o", "yaml"}); after != before {
		t.Errorf("Services after a restart:\n%s\nbefore:\n%s", after, before)
	}
	c.mustLab(t, "", []string{"delete", "-f", example("guestbook")}, "deployment/default/frontend deleted\n")
	contains(t, "after delete", c.mustLab(t, "", []string{"get", "all"}), "No resources found\n")
}
