package clustertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReboot takes a node's processes, network, BPF maps and /run away, and starts it again: its pods come back under the same objects, with
// addresses of the node's prefix, and other nodes' pods reach them by Service; nothing of before is left in the agent.
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
	for _, at := range c.addresses("web") {
		c.asks("web", "http://"+at+":8080/hostname", "in-node", "n2")
		c.asks("web", "http://"+at+":8080/hostname", c.within("client")...)
	}
	c.asks("web", "http://172.30.0.12:8882/hostname", "in-control")
	running := c.run("kubectl", "get", "pods", "-A", "--field-selector=spec.nodeName=n2", "-o", "jsonpath={.items[*].status.podIP}")
	rows := c.run("in-node", "n2", "myelin", "endpoint", "list")
	for _, row := range strings.Split(rows, "\n")[1:] {
		if fields := strings.Fields(row); !slices.Contains(strings.Fields(running), fields[2]) {
			t.Errorf("endpoint %s is of no pod; those of n2 have %s", row, running)
		}
	}
}

// TestAgentAway starts, deletes and reaches pods around an agent that is killed: what runs goes on, what comes waits for the agent, what goes is forgotten.
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
	for _, at := range c.addresses("web") {
		c.asks("web", "http://"+at+":8080/hostname", c.within("client")...)
	}
	c.apply(server("late", "n3", "", ""))
	c.kubectl("delete", "pod", "goes", "--now", "--timeout=30s")
	c.run("agent", "start", "n3")
	c.ready("late")
	for _, at := range c.addresses("late") {
		c.asks("late", "http://"+at+":8080/hostname", c.within("client")...)
	}
	eventually(t, 10*time.Second, func() error {
		if rows := c.run("in-node", "n3", "myelin", "endpoint", "list"); strings.Contains(rows, c.namespace+"/goes") {
			return fmt.Errorf("the agent has the endpoint of a pod still that went while it was away:\n%s", rows)
		}
		return nil
	})
}
