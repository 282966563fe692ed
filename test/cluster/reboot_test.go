package clustertest

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReboot takes a node's processes, network, BPF maps and /run away, and starts it again: its pods come back under
// the same objects, with addresses of the node's prefix, and other nodes' pods reach them by Service; nothing of before
// is left in the agent.
func TestReboot(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n2", ", hostPort: 8882", "") + server("client", "n1", "", "") + `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	c.ready("web")
	c.ready("client")
	url := "http://web." + c.namespace + ".svc.cluster.local/hostname"
	c.asks("web", url, c.within("client")...)
	c.run("reboot", "n2")
	eventually(t, 90*time.Second, func() error {
		if n := c.field("web", ".status.containerStatuses[0].restartCount"); n == "0" {
			return fmt.Errorf("the pod has not been started again")
		}
		return nil
	})
	c.ready("web")
	c.asks("web", url, c.within("client")...)
	c.each("web", []string{"in-node", "n2"}, c.within("client"))
	c.asks("web", "http://172.30.0.12:8882/hostname", "in-control")
	running := c.run("kubectl", "get", "pods", "-A", "--field-selector=spec.nodeName=n2", "-o",
		"jsonpath={.items[*].status.podIP}")
	var endpoints []struct{ Pod, IPv4 string }
	rows := c.run("in-node", "n2", "myelin", "endpoint", "list", "-o", "json")
	if err := json.Unmarshal([]byte(rows), &endpoints); err != nil || len(endpoints) == 0 {
		t.Fatalf("endpoints: %v: %s", err, rows)
	}
	for _, e := range endpoints {
		if !slices.Contains(strings.Fields(running), e.IPv4) {
			t.Errorf("endpoint %+v is of no pod; those of n2 have %s", e, running)
		}
	}
}

// TestServerAway has an API server that does not answer: what there is goes on, also under an agent that is killed and
// starts meanwhile; what is made when the server is back works.
func TestServerAway(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n3", "", "") + nodePorted)
	c.ready("web")
	urls := []string{c.atNodePort("172.30.0.13"), c.atNodePort("172.30.0.11")}
	for _, at := range c.addresses("web") {
		urls = append(urls, "http://"+at+":8080/hostname")
	}
	inside := slices.Clone(urls)
	for _, at := range strings.Fields(c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}")) {
		inside = append(inside, "http://"+net.JoinHostPort(at, "80")+"/hostname")
	}
	all := func() {
		for _, url := range urls {
			c.asks("web", url, "in-control")
		}
		for _, url := range inside {
			c.asks("web", url, "in-node", "n1")
			c.asks("web", url, "in-node", "n3")
		}
	}
	all()
	t.Cleanup(func() { c.run("server", "start") })
	c.run("server", "stop")
	all()
	c.run("agent", "kill", "n3")
	c.run("agent", "start", "n3")
	all()
	c.run("server", "start")
	c.apply(server("late", "n3", "", ""))
	c.ready("late")
	c.each("late", []string{"in-node", "n1"}, []string{"in-control"}, c.within("web"))
	all()
}

// TestAgentAway starts, deletes and reaches pods around an agent that is killed: what runs goes on, what comes waits
// for the agent, what goes is forgotten.
func TestAgentAway(t *testing.T) {
	c := use(t)
	c.apply(server("web", "n3", "", "") + server("goes", "n3", "", "") + server("client", "n1", "", ""))
	for _, pod := range []string{"web", "goes", "client"} {
		c.ready(pod)
	}
	c.run("agent", "kill", "n3")
	t.Cleanup(func() {
		if t.Failed() {
			_, _ = c.script(nil, "agent", "start", "n3")
		}
	})
	if out, err := c.script(nil, "in-node", "n3", "myelin", "status"); err == nil {
		t.Fatalf("the agent runs still:\n%s", out)
	}
	c.each("web", c.within("client"))
	c.apply(server("late", "n3", "", ""))
	c.kubectl("delete", "pod", "goes", "--now", "--timeout=30s")
	c.run("agent", "start", "n3")
	c.ready("late")
	c.each("late", c.within("client"))
	eventually(t, 10*time.Second, func() error {
		if rows := c.run("in-node", "n3", "myelin", "endpoint", "list"); strings.Contains(rows, c.namespace+"/goes") {
			return fmt.Errorf("the agent has the endpoint of a pod still that went while it was away:\n%s", rows)
		}
		return nil
	})
}
